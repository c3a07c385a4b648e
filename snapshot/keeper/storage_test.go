package keeper

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// A stream that is half full makes a snapshot due, long before any threshold or
// interval; what it lets go keeps the stream from ever filling up.
func TestAHalfFullStreamIsSnapshotted(t *testing.T) {
	const most = 64 << 10
	w := newWorldOf(t, t.TempDir(), most)
	m := metrics.NewSet()
	n := w.start("a", func(c *Config) { c.Metrics = m })
	taken := func(because string) uint64 {
		return m.GetOrCreateCounter(`kvatlas_snapshots_total{because="` + because + `"}`).Get()
	}
	w.publish(10)
	n.equal()
	// Without any snapshot the first is due by the interval.
	waittest.For(t, "the first snapshot", func() bool { return taken("interval") == 1 })
	// The Keeper is to look at the stream all the time, not once in some seconds.
	var looking sync.WaitGroup
	ended := make(chan struct{})
	looking.Go(func() {
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				n.keeper.mu.Lock()
				n.keeper.stream[stream.Name("default", testSpace)].looked = time.Time{}
				n.keeper.mu.Unlock()
			case <-ended:
				return
			}
		}
	})
	defer looking.Wait()
	defer close(ended)
	for published := uint64(0); published < 2*most; {
		before := w.info()
		w.publish(50) // it waits while the stream is full
		n.equal()
		published += (w.info().LastSeq - before.LastSeq) * (before.Bytes / max(1, before.Messages))
	}
	waittest.For(t, "snapshots because of storage", func() bool { return taken("storage") >= 2 })
	waittest.For(t, "the stream is trimmed", func() bool { return w.info().FirstSeq > 1 })
	n.crash()
	next := w.start("b", nil)
	next.equal()
	if len(next.starts) != 1 {
		t.Error("it did not begin with a snapshot")
	}
}

// A snapshot is due where a start would take longer for what follows the newest than for
// the snapshot, but not while the last one has just been taken.
func TestASnapshotThatStartsWouldReadLongBeyond(t *testing.T) {
	w := newWorld(t, t.TempDir())
	k := w.start("a", func(c *Config) { c.Threshold = 1_000_000 }).keeper
	hour := time.Now().Add(-time.Hour)
	for _, c := range []struct {
		messages, blocks uint64
		took             time.Duration
		seen             time.Time
		want             string
	}{
		{49_999, 0, 0, hour, ""},
		{50_000, 0, 0, hour, "slow_start"},
		{99_999, 10_000_000, 0, hour, ""},
		{100_000, 10_000_000, 0, hour, "slow_start"},
		{100_000, 10_000_000, time.Minute, hour, "slow_start"},
		{100_000, 10_000_000, 13 * time.Minute, hour, ""},
		{100_000, 10_000_000, time.Minute, time.Now(), ""},
		{999_999, 1 << 40, 0, hour, ""},
		{1_000_000, 1 << 40, 0, hour, "messages"},
		{1_000_000, 0, 13 * time.Minute, hour, "messages"},
	} {
		// As of a replica that has taken none itself: rest is by how long it took whoever did.
		newest := store.Entry{Seq: 7, Blocks: c.blocks, TookMs: uint64(c.took.Milliseconds())}
		st := &streamState{newest: newest, seen: c.seen, looked: time.Now()}
		if got, err := k.due(deadline(t), st, ingest.StreamStatus{Position: 7 + c.messages}, false); err != nil || got != c.want {
			t.Errorf("%d messages after %d blocks that took %v: %q, %v, want %q", c.messages, c.blocks, c.took, got, err, c.want)
		}
	}
}

// A stream that filled up between two looks is trimmed although nothing new can come: the
// kept snapshots are of before it filled up and of its end.
func TestAStreamThatFilledUpAtOnce(t *testing.T) {
	racetest.Without(t, "it goes step by step, for long")
	const most = 64 << 10
	w := newWorldOf(t, t.TempDir(), most)
	m := metrics.NewSet()
	n := w.start("a", func(c *Config) { c.Metrics, c.Keep = m, 4 })
	w.publish(10)
	n.equal()
	waittest.For(t, "the first snapshot", func() bool {
		return m.GetOrCreateCounter(`kvatlas_snapshots_total{because="interval"}`).Get() == 1
	})
	n.keeper.mu.Lock()
	for full := false; !full; {
		for range 20 { // not flushed: the last ones find no room
			if err := w.pubs[0].Publish(deadline(t), w.next(0)); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		full = w.pubs[0].Flush(ctx) != nil
		cancel()
	}
	n.keeper.stream[stream.Name("default", testSpace)].looked = time.Time{}
	n.keeper.mu.Unlock()
	w.publish(200)
	n.equal()
}

// A clock that was set back, or another replica's that is ahead, does not keep
// the next snapshot from being due.
func TestASnapshotFromTheFuture(t *testing.T) {
	w := newWorld(t, t.TempDir())
	m := metrics.NewSet()
	n := w.start("a", func(c *Config) { c.Metrics, c.Interval = m, 400*time.Millisecond })
	taken := func() uint64 { return m.GetOrCreateCounter(`kvatlas_snapshots_total{because="interval"}`).Get() }
	w.publish(10)
	waittest.For(t, "the first snapshot", func() bool { return taken() == 1 })
	n.keeper.mu.Lock()
	n.keeper.stream[stream.Name("default", testSpace)].newest.Written = time.Now().Add(time.Hour)
	before := taken()
	n.keeper.mu.Unlock()
	w.publish(10)
	waittest.For(t, "the next one", func() bool { return taken() > before })
}
