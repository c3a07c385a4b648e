package replica

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/load"
)

// wire delivers messages to the other routers on a goroutine a router; what
// does not fit its buffer is lost.
type wire struct {
	from  uint64
	boxes map[uint64]chan []byte
}

func (w wire) Publish(msg []byte) error {
	for id := range w.boxes {
		if id != w.from {
			_ = w.Send(id, msg)
		}
	}
	return nil
}

func (w wire) Send(to uint64, msg []byte) error {
	select {
	case w.boxes[to] <- msg:
	default: // lost
	}
	return nil
}

// TestRoutersTogether runs routers with all their goroutines: requests come
// and go on each while changes and snapshots cross. Nothing blocks for ever,
// and when all requests are over every router's load is zero.
func TestRoutersTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		boxes := map[uint64]chan []byte{}
		for id := range uint64(3) {
			boxes[id+1] = make(chan []byte, 8)
		}
		var running, clients sync.WaitGroup
		var routers []*route.Router
		for id, box := range boxes {
			r, err := route.New(route.Config{BlockSize: 4, Settings: route.DefaultSettings(), ID: id})
			if err != nil {
				t.Fatal(err)
			}
			for w := range uint64(fleetWorkers) {
				if err := r.SetWorker(route.Worker{ID: w}); err != nil {
					t.Fatal(err)
				}
			}
			p := New(Config{ID: id, State: r, Transport: wire{id, boxes}})
			r.SetJournal(p)
			routers = append(routers, r)
			running.Go(func() { p.Run(ctx, func(err error) { t.Error(err) }) })
			running.Go(func() {
				for {
					select {
					case msg := <-box:
						if err := p.Receive(msg); err != nil {
							t.Error(err)
						}
					case <-ctx.Done():
						return
					}
				}
			})
			for c := range 3 {
				clients.Go(func() {
					for i := range 300 {
						rid := fmt.Sprint(c, "-", i)
						a, err := r.BestWorker(ctx, route.Prompt{Local: []uint64{1, 2, uint64(i)}}, route.Options{RequestID: rid})
						if err != nil {
							t.Error(err)
							return
						}
						if a.DecodeBlocks < 3 {
							t.Errorf("a load below the request's own: %+v", a.Candidate)
						}
						if i%50 == 0 {
							time.Sleep(100 * time.Millisecond)
						}
						r.MarkPrefillComplete(rid)
						r.Free(rid)
					}
				})
			}
		}
		clients.Wait()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		for i, r := range routers {
			if s := r.Stats(); s.Live != 0 || s.Booked != 900 {
				t.Errorf("router %d: %+v", i, s)
			}
			for _, l := range r.Loads() {
				if l.Load != (load.Load{}) {
					t.Errorf("router %d: %+v", i, l)
				}
			}
		}
		cancel()
		running.Wait()
	})
}

// sent keeps what is published.
type sent struct{ list [][]byte }

func (s *sent) Publish(msg []byte) error {
	s.list = append(s.list, msg)
	return nil
}

func (*sent) Send(uint64, []byte) error { return nil }

// While no other router is known, changes are not written down; that there were some its number says,
// with the next heartbeat at the latest, so that whoever knows an older state asks.
func TestAloneNothingIsWritten(t *testing.T) {
	var out sent
	now := time.Unix(1000, 0)
	p := New(Config{ID: 1, Transport: &out, Now: func() time.Time { return now }})
	change := load.Change{Kind: load.Added, Key: load.Key{Owner: 1, ID: "a"}, Request: load.Request{Blocks: make([]uint64, 1000)}}
	if n := testing.AllocsPerRun(10, func() { p.Record(change) }); n > 0 || len(p.queue.buf) > 0 {
		t.Errorf("%v allocations, and %d bytes for nobody", n, len(p.queue.buf))
	}
	number := func() uint64 {
		now = now.Add(time.Second)
		if err := p.Tick(); err != nil {
			t.Fatal(err)
		}
		h, _, err := readHeader(out.list[len(out.list)-1])
		if err != nil {
			t.Fatal(err)
		}
		return h.number
	}
	before := number()
	if again := number(); before == 0 || again != before {
		t.Errorf("the number is %d after changes, and %d after none", before, again)
	}
	if err := p.Receive(header{typeHeartbeat, 0, 2, 0}.append(nil)); err != nil { // somebody is there
		t.Fatal(err)
	}
	p.Record(change)
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	if h, _, err := readHeader(out.list[len(out.list)-1]); err != nil || h.kind != typeChanges || h.number != before+1 {
		t.Errorf("what is told is %+v, %v, want changes number %d", h, err, before+1)
	}
}

// Any time between heartbeats can be waited for.
func TestAnyHeartbeat(t *testing.T) {
	for _, every := range []time.Duration{-1, 0, 1, time.Hour} {
		p := New(Config{ID: 1, Heartbeat: every})
		if p.cfg.Heartbeat/4 <= 0 || p.cfg.Retry <= 0 {
			t.Errorf("%v becomes %v", every, p.cfg.Heartbeat)
		}
	}
}
