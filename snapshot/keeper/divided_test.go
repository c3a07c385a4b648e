package keeper

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// newDivided returns a world whose space has so many streams, each with workers.
func newDivided(t *testing.T, of int, seed uint64) *world {
	t.Helper()
	w := newWorld(t, "")
	w.rng = rand.New(rand.NewPCG(seed, 3))
	for _, p := range w.pubs {
		w.kill(p)
	}
	if err := w.js.DeleteStream(deadline(t), stream.Name("default", testSpace)); err != nil {
		t.Fatal(err)
	}
	w.of, w.pubs, w.held = of, nil, make([][]uint64, 3*of)
	has := make(map[int]bool)
	for id := range w.held {
		w.pubs = append(w.pubs, w.publisher(id))
		has[stream.Partition(uint64(id), of)] = true
	}
	if len(has) != of {
		t.Fatalf("%d of %d streams have workers", len(has), of)
	}
	return w
}

// again starts a worker's engine and publisher anew, with an event.
func (w *world) again(id int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pubs[id], w.held[id] = w.publisher(id), nil
	w.oracle.Clear(core.Holder(id), 0, true)
	if err := errors.Join(w.pubs[id].Publish(deadline(w.t), w.next(id)), w.pubs[id].Flush(deadline(w.t))); err != nil {
		w.t.Fatal(err)
	}
}

// divideAnew ends all workers, and with them the streams and all that is in them. The space
// has so many streams then, and those workers start again that are to.
func (w *world) divideAnew(of int, starts func(id int) bool) {
	w.t.Helper()
	for id, p := range w.pubs {
		if w.pubs[id] = nil; p != nil {
			w.kill(p)
		}
	}
	for _, at := range w.streams() {
		if err := w.js.DeleteStream(deadline(w.t), at.Name); err != nil {
			w.t.Fatal(err)
		}
	}
	w.of = of
	for id := range w.pubs {
		if starts(id) {
			w.again(id)
		}
	}
}

// streams returns the streams of the space.
func (w *world) streams() []stream.Info {
	w.t.Helper()
	infos, err := stream.List(deadline(w.t), w.js, "default")
	if err != nil || len(infos) != w.of {
		w.t.Fatalf("%d streams: %v", len(infos), err)
	}
	return infos
}

// Who reads all streams of a space has a position, a window and snapshots for each of them:
// whatever comes between, a crash, an end in order, one stream that is trimmed up to its own
// snapshot, or purged, or all that are made again, more or fewer of them, by workers of which
// some have ended before they could be asked, the index ends as the oracle's. A seed fixes
// what happens.
func TestAllStreamsOfASpaceEndAsTheOracle(t *testing.T) {
	seeds := coretest.Seeds(2)
	for _, seed := range seeds[:min(len(seeds), 40)] { // each takes half a second
		t.Logf("seed %d", seed)
		w := newDivided(t, 2+int(seed%3), seed)
		w.gapWait = 500 * time.Millisecond
		often := func(c *Config) { c.Threshold, c.Lease = 20+w.rng.Uint64N(60), 200*time.Millisecond }
		n := w.start("a", often)
		taken := uint64(0)
		for range 8 {
			for id, p := range w.pubs {
				if p == nil {
					w.again(id)
				}
			}
			w.publish(20 + w.rng.IntN(80))
			if w.rng.IntN(2) == 0 {
				n.equal()
			}
			at := w.streams()[w.rng.IntN(w.of)]
			what := w.rng.IntN(6)
			switch what {
			case 0:
				n.stop()
			case 1, 2, 3:
				n.crash()
			case 4:
				down := w.rng.IntN(2) == 0
				if down {
					n.crash()
				}
				w.divideAnew(1+w.rng.IntN(4), func(int) bool { return true })
				for id, p := range w.pubs {
					if w.rng.IntN(2) == 0 {
						w.kill(p)
						w.pubs[id] = nil
					}
				}
				if down {
					n = w.start("a", often)
				}
				n.equal()
				continue
			}
			s, err := w.js.Stream(deadline(t), at.Name)
			if err != nil {
				t.Fatal(err)
			}
			switch what {
			case 1: // trimmed, as another replica would: up to its newest snapshot
				if newest := w.newest(at.Name); newest > 1 {
					if err := s.Purge(deadline(t), jetstream.WithPurgeSequence(newest)); err != nil {
						t.Fatal(err)
					}
				}
			case 2: // all of it goes: its publishers are asked
				if err := s.Purge(deadline(t)); err != nil {
					t.Fatal(err)
				}
			}
			if what < 4 {
				w.publish(w.rng.IntN(40))
				n = w.start("a", often)
			}
			n.equal()
			taken += n.count(`kvatlas_ingest_reloads_total{result="loaded"}`)
		}
		for id, p := range w.pubs {
			if p == nil {
				w.again(id)
			}
		}
		n.equal()
		n.stop()
		// Each stream has snapshots of its own: with all that they have gone from the streams,
		// and nobody to ask, a start knows all.
		for _, p := range w.pubs {
			w.kill(p)
		}
		for _, at := range w.streams() {
			s, err := w.js.Stream(deadline(t), at.Name)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Purge(deadline(t), jetstream.WithPurgeSequence(w.newest(at.Name))); err != nil {
				t.Fatal(err)
			}
		}
		n = w.start("b", nil)
		n.equal()
		waittest.Until(t, n.in.Ready)
		if positions := n.in.Streams(); len(positions) != w.of {
			t.Errorf("streams as they are read: %+v", positions)
		}
		if got := taken + n.count(`kvatlas_ingest_reloads_total{result="loaded"}`); got < uint64(w.of-1) {
			t.Errorf("%d snapshots were taken up, of %d streams", got, w.of)
		}
	}
}

// newest returns where the newest snapshot of a stream ends.
func (w *world) newest(name string) uint64 {
	w.t.Helper()
	var seq uint64
	waittest.Until(w.t, func() error {
		m, err := w.manifestOf(name)
		if err == nil && len(m.Snapshots) > 0 {
			seq = m.Snapshots[0].Seq
		}
		return err
	})
	return seq
}
