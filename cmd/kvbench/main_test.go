package main

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/bench/corpus"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// schedule is a small fleet's work: each worker stores heads of a few shared
// chains, removes their tails, and serves requests for all of them.
func schedule(seed uint64) *corpus.Corpus {
	const workers, chains, length = 7, 5, 40
	r := rand.New(rand.NewPCG(seed, 1))
	var engine, local [chains][]uint64
	for c := range chains {
		for range length {
			engine[c], local[c] = append(engine[c], r.Uint64()), append(local[c], r.Uint64())
		}
	}
	out := &corpus.Corpus{BlockSize: 16, Workers: workers, Trace: "schedule"}
	var depth [workers][chains]int
	for id := range uint64(600) {
		w, c := r.IntN(workers), r.IntN(chains)
		d := depth[w][c]
		e := corpus.Event{Worker: uint64(w), Event: event.Event{ID: id}}
		if to := r.IntN(length + 1); to > d {
			e.Kind, e.Engine, e.Local = event.Stored, engine[c][d:to], local[c][d:to]
			if d > 0 {
				e.HasParent, e.Parent = true, engine[c][d-1]
			}
			depth[w][c] = to
		} else if to < d {
			e.Kind, e.Engine = event.Removed, engine[c][to:d]
			depth[w][c] = to
		} else {
			continue
		}
		out.Events = append(out.Events, e)
		out.Requests = append(out.Requests, local[c][:r.IntN(length+1)])
	}
	return out
}

// matched is the reference's answer to what L prints.
func matched(c *corpus.Corpus) float64 {
	o := core.NewOracle()
	for i := range c.Events {
		e := &c.Events[i]
		if e.Kind == event.Stored {
			o.Store(uint32(e.Worker), &e.Event, true)
		} else {
			o.Remove(uint32(e.Worker), &e.Event, true)
		}
	}
	var m core.Matches
	sum := uint64(0)
	for _, q := range c.Requests {
		o.Find(q, &m)
		_, blocks := m.Sum(event.Device)
		sum += blocks
	}
	return float64(sum) / float64(len(c.Requests))
}

// replayed runs the command and returns its lines by mode.
func replayed(t *testing.T, args ...string) map[string][]map[string]any {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(append([]string{"replay", "--lookup", "10ms"}, args...), &stdout, &stderr); code != 0 {
		t.Fatalf("%v: exit %d: %s", args, code, &stderr)
	}
	lines := map[string][]map[string]any{}
	for d := json.NewDecoder(&stdout); d.More(); {
		var l map[string]any
		if err := d.Decode(&l); err != nil {
			t.Fatal(err)
		}
		mode := l["mode"].(string)
		lines[mode] = append(lines[mode], l)
	}
	return lines
}

func TestReplay(t *testing.T) {
	c := schedule(1)
	name := filepath.Join(t.TempDir(), "schedule.bin")
	if err := os.WriteFile(name, corpus.Encode(c), 0o600); err != nil {
		t.Fatal(err)
	}
	stored := 0
	for _, e := range c.Events {
		if e.Kind == event.Stored {
			stored += len(e.Engine)
		} else {
			stored -= len(e.Engine)
		}
	}
	for _, extra := range [][]string{{}, {"--batch", "1"}, {"--batch", "7", "--window", "50", "--shards", "3", "--copies=false"}} {
		lines := replayed(t, append([]string{"--corpus", name, "--modes", "WLC", "--reps", "2"}, extra...)...)
		keys := map[string]string{
			"W": "block_ops_per_s ns_per_block held_blocks live_bytes bytes_per_held_block",
			"L": "lookups_per_s us_mean us_p50 us_p99 us_p999 matched_per_lookup",
			"C": "block_ops_per_s lookups_per_s us_p50 us_p99 us_p999",
		}
		for mode, want := range keys {
			if len(lines[mode]) != 2 {
				t.Fatalf("%v: %d lines of mode %s, want 2", extra, len(lines[mode]), mode)
			}
			for rep, l := range lines[mode] {
				if l["index"] != "kvatlas" || l["rep"] != float64(rep) {
					t.Errorf("%v: line %v", extra, l)
				}
				for _, k := range strings.Fields(want) {
					if _, ok := l[k].(float64); !ok {
						t.Errorf("%v: mode %s has no %s", extra, mode, k)
					}
				}
			}
		}
		if got := lines["W"][0]["held_blocks"]; got != float64(stored) {
			t.Errorf("%v: held %v, want %d", extra, got, stored)
		}
		if got, want := lines["L"][0]["matched_per_lookup"].(float64), matched(c); math.Abs(got-want) > 0.001 {
			t.Errorf("%v: matched %v a lookup, the reference %v", extra, got, want)
		}
	}
}

func TestReplayWide(t *testing.T) {
	lines := replayed(t, "--wide", "30x9", "--modes", "WL")
	if got := lines["W"][0]["held_blocks"]; got != 270.0 {
		t.Errorf("held %v, want 270", got)
	}
	if got := lines["L"][0]["matched_per_lookup"]; got != 270.0 {
		t.Errorf("matched %v a lookup, want 270", got)
	}
	if got := replayed(t, "--wide", "30x9", "--modes", "W", "--spaces", "2")["W"][0]["held_blocks"]; got != 540.0 {
		t.Errorf("two spaces hold %v, want 540", got)
	}
}

// TestHeldIsChecked: an index that ends with another number of blocks than the
// corpus leaves is an error, not a figure.
func TestHeldIsChecked(t *testing.T) {
	c := schedule(2)
	c.Events = append(c.Events, corpus.Event{Event: event.Event{Kind: event.Removed, Engine: []uint64{42}}})
	name := filepath.Join(t.TempDir(), "bad.bin")
	if err := os.WriteFile(name, corpus.Encode(c), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := run([]string{"replay", "--corpus", name}, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "the index holds") {
		t.Errorf("exit %d: %s", code, &stderr)
	}
	if stdout.Len() > 0 {
		t.Errorf("printed %s", &stdout)
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string // in what is printed
	}{
		{"", 2, "usage"},
		{"help", 0, "usage"},
		{"version", 0, "kvbench "},
		{"other", 2, `no command "other"`},
		{"replay", 2, "one of --corpus and --wide"},
		{"replay --help", 0, "-corpus"},
		{"replay --corpus a --wide 1x1", 2, "one of --corpus and --wide"},
		{"replay --wide 1", 2, "LENGTHxWORKERS"},
		{"replay --wide 0x1", 2, "LENGTHxWORKERS"},
		{"replay --wide 1x1 --modes WX", 2, "any of W, L and C"},
		{"replay --wide 1x1 --reps 0", 2, "at least 1"},
		{"replay --wide 1x1 --spaces 2", 2, "--modes W"},
		{"replay --wide 1x1 rest", 2, `"rest"`},
		{"replay --other", 2, "-other"},
		{"replay --corpus /nowhere/at/all", 1, "open the corpus"},
	} {
		var out bytes.Buffer
		if code := run(strings.Fields(c.args), &out, &out); code != c.code || !strings.Contains(out.String(), c.want) {
			t.Errorf("kvbench %s: exit %d, printed %q; want %d and %q", c.args, code, &out, c.code, c.want)
		}
	}
}

func TestLatencies(t *testing.T) {
	l := newLatencies()
	if l.us(0.5) != 0 {
		t.Error("a percentile of nothing")
	}
	all := rand.New(rand.NewPCG(1, 2)).Perm(1000)
	for _, i := range all { // 100 ns … 100 µs, so that both halves are used
		l.add(int64(i+1) * 100)
	}
	for p, want := range map[float64]float64{0: 0.1, 0.5: 50, 0.99: 99, 0.999: 99.9, 1: 100} {
		if got := l.us(p); math.Abs(got-want) > 1e-9 {
			t.Errorf("percentile %v: %v µs, want %v", p, got, want)
		}
	}
}
