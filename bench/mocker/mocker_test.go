package mocker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/conf"
)

// fakeBroker keeps what is published, by worker.
type fakeBroker struct {
	mu      sync.Mutex
	events  map[uint64][]event.Event
	all     []string // in order over workers
	when    []time.Time
	open    int
	space   event.Space
	fail    error
	flushed int
}

type fakePublisher struct {
	b      *fakeBroker
	worker uint64
}

func (b *fakeBroker) broker() Broker {
	b.events = map[uint64][]event.Event{}
	return Broker{
		Open: func(_ context.Context, sp event.Space, worker uint64) (Publisher, error) {
			b.space = sp
			b.open++
			return fakePublisher{b, worker}, nil
		},
		Pending: func() int64 { return 0 },
	}
}

func (p fakePublisher) Publish(_ context.Context, ev event.Event) error {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.b.fail != nil {
		return p.b.fail
	}
	ev.Engine, ev.Local = slices.Clone(ev.Engine), slices.Clone(ev.Local)
	p.b.events[p.worker] = append(p.b.events[p.worker], ev)
	p.b.all = append(p.b.all, text(p.worker, ev))
	p.b.when = append(p.b.when, time.Now())
	return nil
}
func (p fakePublisher) Flush(context.Context) error { p.b.flushed++; return nil }
func (p fakePublisher) Close(context.Context) error {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.b.open--
	return nil
}

func text(worker uint64, ev event.Event) string {
	ev.ID = 0
	return fmt.Sprint(worker, ev)
}

// settings are the defaults with changes by flags.
func settings(t *testing.T, flags ...string) *Config {
	t.Helper()
	var c Config
	set := conf.New("kvmocker", "A test.")
	c.Declare(set)
	if ok, err := set.Run(flags, nil, os.Stdout); err != nil || !ok {
		t.Fatal(ok, err)
	}
	return &c
}

func discard(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) //nolint:errcheck // a test's file
	return f
}

func smallFlags(more ...string) []string {
	return append([]string{
		"--speed=0", "--requests=300", "--workers=3", "--dp-size=2", "--cache-blocks=600", "--max-tokens=8192",
		"--progress=none",
	}, more...)
}

func TestRunIsDeterministicAndRecorded(t *testing.T) {
	var runs [2]fakeBroker
	for i := range runs {
		record := filepath.Join(t.TempDir(), "events")
		cfg := settings(t, smallFlags("--events-out="+record)...)
		if err := Run(t.Context(), cfg, runs[i].broker(), discard(t)); err != nil {
			t.Fatal(err)
		}
		var recorded []string
		ids := map[string]uint64{}
		if err := ReadRecord(record, func(b *event.Batch) error {
			ev := b.Events[0]
			recorded = append(recorded, text(b.Worker, ev))
			stream := fmt.Sprint(b.Worker, ev.DPRank)
			if ids[stream]++; ev.ID != ids[stream] || b.Space != runs[i].space {
				return fmt.Errorf("event %d of %s, want %d; space %v", ev.ID, stream, ids[stream], b.Space)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(recorded, runs[i].all) {
			t.Fatalf("%d events are recorded, %d published", len(recorded), len(runs[i].all))
		}
		if len(ids) != 6 || runs[i].open != 0 || runs[i].flushed < 3 {
			t.Fatalf("%d streams, %d publishers left open", len(ids), runs[i].open)
		}
	}
	if !slices.Equal(runs[0].all, runs[1].all) {
		t.Fatal("two runs of the same settings differ")
	}
	if removed := strings.Count(fmt.Sprint(runs[0].all), "removed"); removed == 0 {
		t.Fatal("nothing was evicted")
	}
}

func TestEngineHashesAgreeOrNot(t *testing.T) {
	names := func(flag string) map[uint64]map[uint64]bool {
		var b fakeBroker
		if err := Run(t.Context(), settings(t, smallFlags(flag, "--routing=round-robin")...), b.broker(), discard(t)); err != nil {
			t.Fatal(err)
		}
		by := map[uint64]map[uint64]bool{} // local hash of first blocks → engine hashes
		for _, events := range b.events {
			for _, ev := range events {
				if ev.Kind == event.Stored && !ev.HasParent {
					if by[ev.Local[0]] == nil {
						by[ev.Local[0]] = map[uint64]bool{}
					}
					by[ev.Local[0]][ev.Engine[0]] = true
				}
			}
		}
		return by
	}
	most := func(by map[uint64]map[uint64]bool) (n int) {
		for _, e := range by {
			n = max(n, len(e))
		}
		return n
	}
	if n := most(names("--engine-hashes=shared")); n != 1 {
		t.Errorf("shared hashes: one content has %d names", n)
	}
	if n := most(names("--engine-hashes=own")); n != 6 {
		t.Errorf("own hashes: one content has %d names on 6 engines", n)
	}
}

func TestSessionsStayOnOneEngine(t *testing.T) {
	reuse := func(routing string) float64 {
		out := discard(t)
		var b fakeBroker
		cfg := settings(t, smallFlags("--progress=json", "--cache-blocks=20000", "--routing="+routing)...)
		if err := Run(t.Context(), cfg, b.broker(), out); err != nil {
			t.Fatal(err)
		}
		return lastLine(t, out).Reuse
	}
	if s, r := reuse(RouteSession), reuse(RouteRandom); s < r+0.1 {
		t.Errorf("reuse %.2f with session affinity, %.2f at random", s, r)
	}
}

func lastLine(t *testing.T, f *os.File) Progress {
	t.Helper()
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	var p Progress
	if err := json.Unmarshal(lines[len(lines)-1], &p); err != nil {
		t.Fatalf("%s: %v", lines[len(lines)-1], err)
	}
	return p
}

// Lines for people stand in a terminal of 80 columns, but for the worst of a fleet
// that is hopelessly late.
func TestLinesFit(t *testing.T) {
	p := Progress{
		Seconds: 9999, Requests: 9999999, RequestsPerSec: 999, Reuse: 1, Events: 99999999, EventsPerSec: 99999, HeldBlocks: 9999999,
		PendingBytes: 9 << 10,
	}
	lines := []string{p.text(p.state())}
	p.Done = true
	for _, line := range append(lines, p.text("")) {
		if len(line) > 80 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
}

// A trace is replayed at its speed, again and again where it loops, and what
// is a request's own is new each time.
func TestReplayKeepsTimeAndLoops(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	lines := `{"timestamp":0,"input_length":100,"output_length":20,"hash_ids":[0]}
{"timestamp":10000,"input_length":1024,"output_length":1,"hash_ids":[0,1]}
`
	if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var b fakeBroker
		out := discard(t)
		cfg := settings(t, "--trace="+path, "--trace-id-tokens=512", "--speed=5", "--workers=1", "--requests=4",
			"--at-end=loop", "--progress=json")
		start := time.Now()
		if err := Run(t.Context(), cfg, b.broker(), out); err != nil {
			t.Fatal(err)
		}
		// The second loop starts a second after the first one's last request.
		if d := time.Since(start); d < 4200*time.Millisecond || d > 4300*time.Millisecond {
			t.Errorf("the run took %v", d)
		}
		p := lastLine(t, out)
		if p.Requests != 4 || p.Finished != 4 || !p.Done || p.BehindSeconds > 0.1 {
			t.Errorf("%+v", p)
		}
		// 6 blocks of the first prompt, 1 that its answer completes; of the
		// second one all but the 6; in the second loop only the answer.
		if p.StoredBlocks != 6+1+58+1 {
			t.Errorf("%d blocks stored", p.StoredBlocks)
		}
	})
}

func TestWaitKeepsPublishersUntilTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var b fakeBroker
		done := make(chan error)
		record := filepath.Join(t.TempDir(), "events")
		go func() {
			done <- Run(ctx, settings(t, smallFlags("--at-end=wait", "--events-out="+record)...), b.broker(), os.Stdout)
		}()
		synctest.Wait()
		if b.open != 3 || b.flushed != 3 {
			t.Errorf("%d publishers open, %d flushed", b.open, b.flushed)
		}
		recorded := 0
		if err := ReadRecord(record, func(*event.Batch) error { recorded++; return nil }); err != nil || recorded != len(b.all) {
			t.Errorf("%d events of %d are recorded, %v", recorded, len(b.all), err)
		}
		cancel()
		if err := <-done; err != nil || b.open != 0 {
			t.Errorf("error %v, %d publishers open", err, b.open)
		}
	})
}

func TestCancelledRunEndsInOrder(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var b fakeBroker
	for _, speed := range []string{"--speed=0", "--speed=1"} {
		if err := Run(ctx, settings(t, speed, "--progress=none"), b.broker(), os.Stdout); err != nil || b.open != 0 {
			t.Errorf("%s: error %v, %d publishers open", speed, err, b.open)
		}
	}
}

func TestFailuresEndTheRun(t *testing.T) {
	b := fakeBroker{fail: errors.New("no room")}
	if err := Run(t.Context(), settings(t, smallFlags()...), b.broker(), os.Stdout); !errors.Is(err, b.fail) {
		t.Errorf("got %v", err)
	}
	for _, flag := range []string{"--trace=/does/not/exist", "--system-tokens=1000000"} {
		if err := Run(t.Context(), settings(t, smallFlags(flag)...), b.broker(), os.Stdout); err == nil || b.open != 0 {
			t.Errorf("%s: error %v, %d publishers open", flag, err, b.open)
		}
	}
}

// Requests that no cache can take are refused and counted, not fatal.
func TestTooLargeRequestsAreCounted(t *testing.T) {
	out := discard(t)
	var b fakeBroker
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	lines := `{"timestamp":0,"input_length":1000,"output_length":8,"hash_ids":[1,2]}
{"timestamp":1,"input_length":1500,"output_length":8,"hash_ids":[1,2,3]}
`
	if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), settings(t, smallFlags("--cache-blocks=80", "--progress=json", "--trace-id-tokens=512", "--trace="+path)...), b.broker(), out); err != nil {
		t.Fatal(err)
	}
	if p := lastLine(t, out); p.Refused != 1 || p.Requests != 1 || p.Finished != 1 {
		t.Errorf("%+v", p)
	}
}

func TestRecordRefusesDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	for _, data := range []string{"\xff\xff\xff\xff", "\x05\x00\x00\x00abc", "\x03\x00\x00\x00abc", "\x00"} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := ReadRecord(path, func(*event.Batch) error { return nil }); err == nil {
			t.Errorf("%q is accepted", data)
		}
	}
}
