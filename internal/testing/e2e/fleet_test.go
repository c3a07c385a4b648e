package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mocker"
	"github.com/kvatlas/kvatlas/core/coretest"
)

// load returns the flags for the conversation trace, or, where it is absent,
// for a workload of similar shape: one system prompt that everybody has, long
// prompts of which a third or so is new, turns that are not bound to an engine.
func load(t *testing.T, requests int) []string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "..", "shared", "traces", "conversation.jsonl.zst"))
	if err != nil {
		t.Fatal(err)
	}
	flags := []string{"--requests", strconv.Itoa(requests)}
	if _, err := os.Stat(path); err == nil {
		return append(flags, "--trace", path)
	}
	t.Logf("%s is absent: a generated workload instead", path)
	return append(flags, "--system-prompts", "1", "--system-tokens", "512", "--conversations", "1", "--agents", "1",
		"--one-offs", "1", "--rate", "3.4", "--routing", "round-robin")
}

// Every holder of every prompt of the trace, after the fleet's caches have
// turned over several times: no difference from the oracle.
func TestTraceAgainstOracle(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	part := 4 // of the trace and of the workers; make nightly has the whole
	if coretest.Scale() > 1 {
		part = 1
	}
	requests, ranks := 12_031/part, 128/part
	home := t.TempDir()
	record := filepath.Join(home, "events")
	flags := append(load(t, requests), "--workers", strconv.Itoa(ranks/2), "--dp-size", "2", "--block-size", "16", "--cache-blocks", "16384")

	in := startIndexer(t, home)
	begun := time.Now()
	fleet := startMocker(t, home, append(flags, "--speed", "0", "--linger", "50ms", "--events-out", record)...)
	last := fleet.progress(func(mocker.Progress) bool { return true })
	fleet.wait(time.Minute)
	published := time.Now()
	in.drained(last.Events)
	drained := time.Now()
	v := judged(t, home, append(flags, "--record", record, "--url", in.url)...)
	in.stop()

	t.Logf("published in %v, drained %v later, judged in %v: %+v",
		published.Sub(begun), drained.Sub(published), time.Since(drained), v)
	switch {
	case v.Prompts != requests || v.Ranks != ranks || v.AsTokens == 0:
		t.Errorf("%d prompts, %d as tokens, and %d ranks", v.Prompts, v.AsTokens, v.Ranks)
	case v.EvictedBlocks < 1_000_000/part || int64(v.EvictedBlocks) != last.RemovedBlocks:
		t.Errorf("%d blocks evicted, the fleet says %d: want over a million of the whole trace", v.EvictedBlocks, last.RemovedBlocks)
	case int64(v.Events) != last.Events || int64(v.HeldBlocks) != last.HeldBlocks:
		t.Errorf("%d events, %d blocks held; the fleet says %d and %d", v.Events, v.HeldBlocks, last.Events, last.HeldBlocks)
	case v.Matches < requests*ranks/2 || v.Deepest < 100:
		t.Errorf("%d matches, %d blocks deep: the trace shares more", v.Matches, v.Deepest)
	}
}

// The indexer, and with it the broker, is killed in the middle and started
// again: what was acknowledged is there, the rest comes again, and the answers
// are those of the oracle.
func TestKilledIndexerEndsWithTheSameAnswers(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	requests := 2000
	if coretest.Scale() > 1 {
		requests = 4000
	}
	home := t.TempDir()
	record := filepath.Join(home, "events")
	flags := append(load(t, requests), "--workers", "16", "--dp-size", "2", "--engine-hashes", "own")

	in := startIndexer(t, home)
	// 2,000 requests come in about 10 minutes: at this speed there is a middle
	// on every machine.
	fleet := startMocker(t, home, append(flags, "--speed", "200", "--linger", "20ms", "--events-out", record)...)
	killed := fleet.progress(func(p mocker.Progress) bool { return p.Requests < int64(requests/4) })
	in.kill()
	if killed.Done || killed.Requests >= int64(requests) {
		t.Fatalf("the fleet was done before the indexer was killed: %+v", killed)
	}
	in = startIndexer(t, home)
	last := fleet.progress(func(mocker.Progress) bool { return true })
	fleet.wait(time.Minute)
	in.drained(last.Events)
	v := judged(t, home, append(flags, "--record", record, "--url", in.url)...)
	in.stop()
	t.Logf("killed after %d of %d events: %+v", killed.Events, last.Events, v)
	if v.Prompts != requests || v.Ranks != 32 || v.EvictedBlocks < 100_000 {
		t.Errorf("%d prompts, %d ranks, %d blocks evicted", v.Prompts, v.Ranks, v.EvictedBlocks)
	}
}

// A fleet that registers is listed while it runs, and gone with its blocks when
// it has ended; one that does not is known by its events alone.
func TestFleetThatRegisters(t *testing.T) {
	home := t.TempDir()
	in := startIndexer(t, home)
	fleet := startMocker(t, home, "--register", "--workers=2", "--requests=20", "--speed=0", "--at-end=wait")
	startMocker(t, home, "--first-worker=11", "--workers=1", "--requests=20", "--speed=0").wait(time.Minute)
	workers := func() (states []string, err error) {
		text, err := get(t.Context(), in.url+"/v1/workers?model=mock")
		if err != nil {
			return nil, err
		}
		var m struct {
			Spaces []struct {
				Workers []struct {
					ID    string `json:"worker_id"`
					State string
				}
			}
		}
		if err := json.Unmarshal(text, &m); err != nil {
			return nil, err
		}
		for _, sp := range m.Spaces {
			for _, w := range sp.Workers {
				states = append(states, w.ID+" "+w.State)
			}
		}
		slices.Sort(states)
		return states, nil
	}
	are := func(want ...string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			got, err := workers()
			if err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("%q, want %q", got, want)
			}
			return err
		})
	}
	are("1 live", "11 unregistered", "2 live")
	fleet.stop()
	are("1 gone", "11 unregistered", "2 gone")
	in.stop()
}
