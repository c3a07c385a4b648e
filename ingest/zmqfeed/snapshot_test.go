package zmqfeed

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
)

// cleared is the batch that a snapshot begins with.
func cleared() []byte { return mptest.Encode([]any{1.5, []any{[]any{"AllBlocksCleared"}}, 0}) }

// whole is the snapshot of a process that holds all that it stored, in two parts more.
func whole(process int) func(uint64) [][]byte {
	return func(next uint64) [][]byte {
		parts := [][]byte{cleared()}
		var stores [2][]any
		for i := range int(next) {
			half := min(1, 2*i/int(next))
			stores[half] = append(stores[half], []any{"BlockStored", []uint64{name(process, i)}, nil, []uint32{1, 2, 3, uint32(i)}, 4, nil})
		}
		for _, list := range stores {
			parts = append(parts, mptest.Encode([]any{1.5, list, 0}))
		}
		return parts
	}
}

// snapshots is config with snapshots.
func snapshots(p *enginepub.Publisher) Config {
	cfg := config(p)
	cfg.Snapshots, cfg.ReplayIdle = true, time.Minute // a slow engine is none that is gone
	return cfg
}

// TestASnapshotWhereTheReplayDoesNotReach: at the start, and after a gap that is larger
// than the replay, all is there and nothing is lost; also where the process is another.
func TestASnapshotWhereTheReplayDoesNotReach(t *testing.T) {
	forms(t, func(t *testing.T, withTopic bool) {
		p := publisher(t, enginepub.Config{Buffer: 10, WithTopic: withTopic, Snapshot: whole(1)})
		publish(p, 1, 100)
		r := newRecorder(t)
		f, stop := start(t, snapshots(p), r)
		subscribed(r, p)
		r.reach(100)
		publish(p, 1, 5)
		r.reach(105)
		r.holds(1, 0, 105)
		stop()
		if f.Status().Incomplete {
			t.Error("something is missing")
		}
		publish(p, 1, 50)
		for process := 1; process <= 2; process++ {
			if process == 2 { // further on than the one before
				p = again(t, p, enginepub.Config{Buffer: 10, WithTopic: withTopic, Snapshot: whole(2)})
				publish(p, 2, 200)
			}
			cfg := snapshots(p)
			cfg.Position = f.Position(nil)
			r2 := newRecorder(t)
			r2.next = 105
			f2, stop := start(t, cfg, r2)
			r2.reach(p.Next())
			r2.holds(process, 0, int(p.Next()))
			stop()
			if s := f2.Stats(); s.Lost != [NumReasons]uint64{} || s.Snapshots != [numSnapshotResults]uint64{SnapshotTaken: 1} || f2.Status().Incomplete {
				t.Errorf("process %d: lost %v, snapshots %v, incomplete %t", process, s.Lost, s.Snapshots, f2.Status().Incomplete)
			}
		}
	})
}

// TestWhatIsPublishedAfterASnapshotComes, though not live, and nobody asks because of silence.
func TestWhatIsPublishedAfterASnapshotComes(t *testing.T) {
	p := publisher(t, enginepub.Config{Buffer: 10, Snapshot: whole(1), Lose: func(seq uint64) bool { return seq >= 100 }})
	publish(p, 1, 100)
	r := newRecorder(t)
	r.onBatch = func(seq uint64) {
		if seq == 99 {
			publish(p, 1, 5)
		}
	}
	cfg := snapshots(p)
	cfg.ProbeMin = -1
	f, stop := start(t, cfg, r)
	r.reach(105)
	r.holds(1, 0, 105)
	stop()
	if s := f.Stats(); s.Lost != [NumReasons]uint64{} || s.Snapshots[SnapshotTaken] != 1 {
		t.Errorf("lost %v, snapshots %v", s.Lost, s.Snapshots)
	}
}

// TestSnapshotsThatAreNone: what is lost then is lost, as without, and the reason is counted.
func TestSnapshotsThatAreNone(t *testing.T) {
	unreadable := []byte("\xc1")
	for _, c := range []struct {
		want  SnapshotResult
		parts [][]byte // nil: an engine that knows no snapshots
		most  int
	}{
		{SnapshotNone, nil, 0},
		{SnapshotNone, [][]byte{}, 0},
		{SnapshotUnusable, [][]byte{payload(1, 7)}, 0},
		{SnapshotUnusable, [][]byte{cleared(), payload(1, 7), unreadable}, 0},
		{SnapshotOversize, [][]byte{cleared(), payload(1, 7), payload(1, 8)}, len(cleared()) + len(payload(1, 7))},
	} {
		t.Run(fmt.Sprintf("%v of %d", c.want, len(c.parts)), func(t *testing.T) {
			cfg := enginepub.Config{Buffer: 10}
			if c.parts != nil {
				cfg.Snapshot = func(uint64) [][]byte { return c.parts }
			}
			p := publisher(t, cfg)
			publish(p, 1, 100)
			r := newRecorder(t)
			feed := snapshots(p)
			feed.SnapshotBytes = c.most
			f, stop := start(t, feed, r)
			r.reach(100)
			r.holds(1, 90, 100)
			stop()
			var want [numSnapshotResults]uint64
			want[c.want] = 1
			if s := f.Stats(); s.Snapshots != want || s.Lost[Retention] != 90 || !f.Status().Incomplete {
				t.Errorf("snapshots %v, want %v; lost %v", s.Snapshots, want, s.Lost)
			}
		})
	}
}

// FuzzSnapshot: whatever the parts are, a snapshot is refused with a reason or begins with
// nothing, of one number, within its bounds, and owns what it gives.
func FuzzSnapshot(f *testing.F) {
	f.Add(cleared(), payload(1, 7), uint64(9), uint64(9))
	f.Add(payload(1, 7), cleared(), uint64(9), uint64(9))
	f.Add(cleared(), []byte("\xc1"), uint64(9), uint64(9))
	f.Add(cleared(), payload(1, 7), uint64(9), uint64(8))
	f.Add(cleared(), []byte{}, uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, a, b []byte, m, n uint64) {
		dec, err := engine.NewDecoder(engine.Config{BlockSize: 4})
		if err != nil {
			t.Fatal(err)
		}
		w := &snapshot{dec: dec, max: 1 << 12}
		err = w.part(m, a)
		if err == nil {
			had := fmt.Sprint(w.batch.Events)
			if err = w.part(n, b); err == nil && fmt.Sprint(w.batch.Events[:len(w.batch.Events)])[:len(had)-1] != had[:len(had)-1] {
				t.Fatal("a part changed the one before")
			}
		}
		if err != nil {
			if !errors.Is(err, errUnusable) && !errors.Is(err, errLarge) {
				t.Fatalf("no reason: %v", err)
			}
			return
		}
		if len(bytes.Join([][]byte{a, b}, nil)) > w.max || m != n || m == 0 {
			t.Fatalf("taken: %d and %d bytes of before %d and %d", len(a), len(b), m, n)
		}
		if evs := w.batch.Events; len(evs) == 0 || evs[0].Kind != event.Cleared || !evs[0].AllTiers {
			t.Fatalf("it begins with %v", evs)
		}
	})
}
