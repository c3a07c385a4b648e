package ingest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/recovery"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// Whoever takes and gives back: no more places are taken than there are, none stays free
// that somebody waits for, no publisher has more than half, and one that has none is
// before those that have some.
func TestPlacesAreShared(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			all := 1 + rng.IntN(9)
			p := newPlaces(all)
			type holder struct {
				subject string
				cancel  context.CancelFunc
				got     chan error
			}
			var asked []*holder
			taken := map[string]int{}
			for range 400 {
				switch {
				case rng.IntN(2) == 0 || len(asked) == 0:
					ctx, cancel := context.WithCancel(t.Context())
					h := &holder{fmt.Sprint(min(rng.IntN(40), 5)), cancel, make(chan error, 1)} // most are of one publisher
					asked = append(asked, h)
					go func() { h.got <- p.take(ctx, h.subject) }()
				default:
					i := rng.IntN(len(asked))
					h := asked[i]
					asked = append(asked[:i], asked[i+1:]...)
					h.cancel()
					if err := <-h.got; err == nil {
						p.giveBack(h.subject)
					}
				}
				synctest.Wait()
				clear(taken)
				waiting := map[string]int{}
				n := 0
				for _, h := range asked {
					select {
					case err := <-h.got:
						h.got <- err
						taken[h.subject]++
						n++
					default:
						waiting[h.subject]++
					}
				}
				if n != p.taken || n > all {
					t.Fatalf("seed %d: %d of %d places are taken, %d are counted", seed, n, all, p.taken)
				}
				for subject := range waiting {
					if n < all && taken[subject] < max(1, all/2) {
						t.Fatalf("seed %d: %s waits with %d places, %d of %d are taken", seed, subject, taken[subject], n, all)
					}
				}
				for subject, k := range taken {
					if k > max(1, all/2) {
						t.Fatalf("seed %d: %s has %d of %d places", seed, subject, k, all)
					}
				}
			}
			for _, h := range asked {
				h.cancel()
				if err := <-h.got; err == nil {
					p.giveBack(h.subject)
				}
			}
			if p.taken != 0 || len(p.waiting) != 0 || len(p.by) != 0 {
				t.Errorf("seed %d: in the end %d places are taken, %d wait, %d publishers are known", seed, p.taken, len(p.waiting), len(p.by))
			}
		})
	}
}

// A heartbeat that names 5,000 ranks of a worker that does not answer: as many as a worker
// may have, a fifth, are asked for, those of another worker at once, and the silent one less and less.
func TestAWorkerOfManyRanksKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		honest := recovery.NewSource(recovery.Config{Space: testSpace, Worker: 2, Incarnation: 5, Ring: 100, RingBytes: 1 << 20, KeepDump: 10 * time.Second})
		var asked atomic.Int64
		b := newFakeTime(t, map[uint64]func(context.Context, []byte) ([]byte, error){
			1: func(ctx context.Context, _ []byte) ([]byte, error) {
				asked.Add(1)
				<-ctx.Done()
				return nil, ctx.Err()
			},
			2: func(_ context.Context, request []byte) ([]byte, error) {
				data, _ := honest.Answer(request, 1<<20)
				return data, nil
			},
			3: func(context.Context, []byte) ([]byte, error) { return nil, errNoAnswer },
		})
		defer b.close()
		many := func(last uint64) (all []event.Position) {
			for n := range uint32(5_000) {
				all = append(all, event.Position{DPRank: n, ID: last})
			}
			return all
		}
		b.feed(1, true, heartbeat(1, 9, many(3)...))
		if n := len(b.partition.byWorker[1]); n != b.cfg.MaxWorkerRanks {
			t.Errorf("%d ranks of a worker are followed", n)
		}
		for id := range uint64(9) {
			ev := store(id+1, id+1)
			honest.Apply(ev)
			if id != 4 {
				b.feed(2, false, batch(2, 5, ev))
			}
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if s := b.partition.rank(2, 0).status(); s.LastID != 9 || s.Incomplete {
			t.Errorf("a worker beside it: %+v", s)
		}
		for n := range uint64(racetest.Few(24)) {
			b.feed(1, true, heartbeat(1, 9, many(4+n)...))
			time.Sleep(5 * time.Second)
		}
		// Each takes two seconds, and the next waits for up to ten.
		if most := int64(2 * 60 / 6); asked.Load() > most {
			t.Errorf("the silent worker is asked %d times in two minutes, want at most %d", asked.Load(), most)
		}
		if s := b.partition.rank(1, 7).status(); !s.Incomplete || s.Is(follow.Following) {
			t.Errorf("a rank that is not known: %+v", s)
		}

		// Of a worker that is registered, the registered ranks are followed, and a few more.
		b.cfg.Registered = func(_ event.Space, worker uint64, dpRank uint32) bool { return worker != 3 || dpRank >= 4_900 }
		b.feed(3, true, heartbeat(3, 9, many(1)...))
		if n := len(b.partition.byWorker[3]); n != 100+extraRanks {
			t.Errorf("%d ranks of a worker with a hundred are followed", n)
		}
	})
}

// count returns how many places are taken.
func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}
