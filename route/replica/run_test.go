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
