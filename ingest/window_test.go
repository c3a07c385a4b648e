package ingest

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// Against the obvious model: a list of what is in flight, in stream order.
func TestWindowPosition(t *testing.T) {
	type message struct {
		seq, number uint64
		bytes       int
		done        bool
	}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 5))
		w := newWindow(1000, 1<<20)
		var all []*message
		seq, bytes, inFlight := uint64(0), 0, 0
		for range 300 {
			if rng.IntN(2) == 0 {
				seq += 1 + uint64(rng.IntN(3)) // sequences have holes
				m := &message{seq: seq, bytes: rng.IntN(100)}
				n, err := w.add(t.Context(), entry{seq: m.seq, bytes: m.bytes, reply: "r"})
				if err != nil {
					t.Fatal(err)
				}
				m.number = n
				all = append(all, m)
				bytes += m.bytes
			} else if len(all) > 0 {
				// Mostly the oldest, so that the window moves on.
				m := all[rng.IntN(1+rng.IntN(len(all)))]
				for _, old := range all {
					if !old.done && rng.IntN(2) == 0 {
						m = old
						break
					}
				}
				if m.done {
					continue
				}
				m.done = true
				bytes -= m.bytes
				w.complete(m.number)
			}
			pos := uint64(0)
			inFlight = 0
			for _, m := range all {
				if !m.done {
					break
				}
				pos = m.seq
			}
			for i, m := range all {
				if !m.done {
					inFlight = len(all) - i
					break
				}
			}
			if p := w.progress(); p.pos != pos || p.bytes != bytes || p.inFlight != inFlight {
				t.Fatalf("seed %d: %+v, want position %d, %d in flight with %d bytes", seed, p, pos, inFlight, bytes)
			}
		}
	}
}

func TestWindowBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(2, 100)
		add := func(bytes int) (uint64, error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return w.add(ctx, entry{seq: 1, bytes: bytes})
		}
		large, err := add(1000)
		if err != nil {
			t.Fatalf("a message larger than the window, alone: %v", err)
		}
		if _, err := add(1); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("beyond the bytes: %v", err)
		}
		go func() {
			time.Sleep(500 * time.Millisecond)
			w.complete(large)
		}()
		for range 2 {
			if _, err := add(1); err != nil {
				t.Fatalf("after room came: %v", err)
			}
		}
		if _, err := add(1); !errors.Is(err, context.DeadlineExceeded) || !w.full() {
			t.Fatalf("beyond the messages: %v", err)
		}
	})
}

// After a restart of the position, what was in flight moves it no more, and
// acknowledgements of an old consumer are gone.
func TestWindowRestart(t *testing.T) {
	w := newWindow(10, 100)
	a, _ := w.add(t.Context(), entry{seq: 50, reply: "old"})
	w.restart(0, time.Time{})
	b, _ := w.add(t.Context(), entry{seq: 1, reply: "new"})
	w.complete(a)
	if p := w.progress(); p.pos != 0 || w.takeReply() != "" {
		t.Fatalf("%+v", p)
	}
	w.complete(b)
	if p := w.progress(); p.pos != 1 || w.takeReply() != "new" || w.takeReply() != "" {
		t.Fatalf("%+v", p)
	}
	c, _ := w.add(t.Context(), entry{seq: 2})
	at := time.Unix(9, 0)
	w.skipTo(9, at)
	if p := w.progress(); p.pos != 1 {
		t.Fatalf("over what is in flight: %+v", p)
	}
	w.complete(c)
	w.skipTo(4, time.Time{})
	if p := w.progress(); p.pos != 9 || !p.stored.Equal(at) || p.inFlight != 0 {
		t.Fatalf("%+v", p)
	}
}
