package kvatlas

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

// divided is a fleet that is divided among the indexers of four shares, and known as a
// whole to the oracle and to an Atlas with an index of its own.
type divided struct {
	t       *testing.T
	rand    *rand.Rand
	sets    [4]*shard.Set
	servers [4]*httptest.Server
	wrong   [4]atomic.Pointer[http.HandlerFunc] // answers in a share's place
	stale   atomic.Pointer[shard.RankID]        // of its share
	chains  [][]uint64
	oracle  *core.Oracle
	whole   *Atlas
	own     *route.Router // of whole
}

const dividedWorkers = 16 // of two ranks

func holderOf(k shard.RankID) core.Holder { return core.Holder(k.Worker*2) + k.DPRank }

func newDivided(t *testing.T, routing route.Settings) *divided {
	t.Helper()
	d := &divided{t: t, rand: rand.New(rand.NewPCG(7, 8)), oracle: core.NewOracle()}
	for i := range d.sets {
		d.sets[i] = shard.New(shard.Config{Shards: 2})
		t.Cleanup(d.sets[i].Close)
		share := stream.Share{Index: i, Of: len(d.sets)}
		s, err := query.New(query.Config{}, query.Deps{
			Index: query.Shards{Set: d.sets[i]}, Share: share, Log: quiet(), Metrics: obs.NewMetrics(),
			Stale: func() map[event.Space]map[shard.RankID]bool {
				if k := d.stale.Load(); k != nil {
					return map[event.Space]map[shard.RankID]bool{space: {*k: true}}
				}
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		right := s.Handler()
		d.servers[i] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if wrong := d.wrong[i].Load(); wrong != nil {
				(*wrong)(w, r)
				return
			}
			right.ServeHTTP(w, r)
		}))
		t.Cleanup(d.servers[i].Close)
	}
	d.whole, d.own = open(t, Config{Routing: routing})
	d.workers(d.own)
	for range 20 { // chains that share prefixes
		chain := []uint64{d.rand.Uint64()}
		if len(d.chains) > 0 {
			old := d.chains[d.rand.IntN(len(d.chains))]
			chain = slices.Clone(old[:1+d.rand.IntN(len(old))])
		}
		for range 1 + d.rand.IntN(12) {
			chain = append(chain, d.rand.Uint64())
		}
		d.chains = append(d.chains, chain)
	}
	return d
}

// workers tells a router of the fleet.
func (d *divided) workers(r *route.Router) {
	d.t.Helper()
	for id := range uint64(dividedWorkers) {
		if err := r.SetWorker(route.Worker{ID: id, Ranks: 2, TotalBlocks: 40}); err != nil {
			d.t.Fatal(err)
		}
	}
}

// publish applies random events, at the share of each worker and where all are known.
func (d *divided) publish(n int) {
	d.t.Helper()
	for range n {
		k := shard.RankID{Worker: d.rand.Uint64N(dividedWorkers), DPRank: uint32(d.rand.IntN(2))}
		chain := d.chains[d.rand.IntN(len(d.chains))]
		chain = chain[:1+d.rand.IntN(len(chain))]
		ev := event.Event{Kind: event.Stored, DPRank: k.DPRank, Engine: blockhash.SequenceHashes(nil, chain), Local: chain, Tier: event.Tier(d.rand.IntN(3))}
		if d.rand.IntN(4) == 0 {
			ev.Kind, ev.Local, ev.Engine = event.Removed, nil, ev.Engine[len(ev.Engine)-1:]
			d.oracle.Remove(holderOf(k), &ev, false)
		} else {
			d.oracle.Store(holderOf(k), &ev, false)
		}
		b := &event.Batch{Space: space, Worker: k.Worker, Events: []event.Event{ev}}
		sp, err := d.sets[stream.Partition(k.Worker, len(d.sets))].Open(space)
		if err == nil {
			_, err = sp.ApplyWait(d.t.Context(), b)
		}
		if err == nil {
			err = d.whole.Apply(d.t.Context(), b)
		}
		if err != nil {
			d.t.Fatal(err)
		}
	}
}

func (d *divided) config(routing route.Settings, wait time.Duration) Config {
	cfg := Config{Routing: routing}
	for _, s := range d.servers {
		cfg.Replica.Shares.URLs = append(cfg.Replica.Shares.URLs, s.URL)
	}
	cfg.Replica.Shares.Wait, cfg.Replica.Shares.Every = wait, 20*time.Millisecond
	return cfg
}

// known waits until the shares have told what all ranks hold, and tells the router.
func (d *divided) known(a *Atlas, r *route.Router) {
	d.t.Helper()
	want := map[shard.RankID]int{}
	for _, k := range d.whole.Replica().Set().Lookup(space).Ranks() {
		for _, n := range k.Held {
			want[k.RankID] += n
		}
	}
	waittest.Until(d.t, func() error {
		if have := a.Replica().Shares().Held()[space]; !reflect.DeepEqual(have, want) {
			return fmt.Errorf("the shares say that ranks hold %v, want %v", have, want)
		}
		return nil
	})
	r.SetHeld(want)
}

// A library that asks shares chooses as one that has the index itself, with the depths of
// the oracle: by all modes that weigh what is cached, with bookings and without.
func TestSharesAreChosenByAsOneIndex(t *testing.T) {
	for mode, booked := range map[string]bool{"auto": false, "kv": true, "dynamo": true, "prefill-x-batch": true} {
		t.Run(mode, func(t *testing.T) {
			routing := route.DefaultSettings()
			routing.Mode, routing.Seed = mode, 11
			d := newDivided(t, routing)
			a, r := open(t, d.config(routing, 5*time.Second))
			d.workers(r)
			if err := a.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			for round := range 3 {
				d.publish(150)
				d.known(a, r)
				for i := range 50 {
					chain := d.chains[d.rand.IntN(len(d.chains))]
					prompt := route.Prompt{Local: slices.Concat(chain[:1+d.rand.IntN(len(chain))], []uint64{d.rand.Uint64()})[d.rand.IntN(2):]}
					o := route.Options{Explain: true}
					if booked {
						o.RequestID = fmt.Sprint(round, ".", i)
					}
					have, err := r.BestWorker(t.Context(), prompt, o)
					want, err2 := d.own.BestWorker(t.Context(), prompt, o)
					if err != nil || err2 != nil {
						t.Fatal(err, err2)
					}
					have.Since, want.Since, have.First, want.First = time.Time{}, time.Time{}, 0, 0 // which go by the clock,
					have.Decision, want.Decision = "", ""                                           // as does which are sampled
					for i := range have.Ranks {
						have.Ranks[i].Since, want.Ranks[i].Since = time.Time{}, time.Time{}
					}
					if !reflect.DeepEqual(have, want) {
						t.Fatalf("chosen over shares:\n%+v\nby an index:\n%+v", have, want)
					}
					d.judge(prompt.Local, have.Ranks, func(uint64) bool { return false })
					if i%3 == 0 && booked {
						r.Free(o.RequestID)
						d.own.Free(o.RequestID)
					}
				}
			}
			if err := a.Apply(t.Context(), &event.Batch{Space: space}); err == nil {
				t.Error("events past the shares are taken")
			}
		})
	}
}

// judge compares depths with the oracle's: of all ranks but those that are unknown.
func (d *divided) judge(prompt []uint64, ranks []route.Explained, unknown func(worker uint64) bool) {
	d.t.Helper()
	if len(ranks) != 2*dividedWorkers {
		d.t.Fatalf("%d ranks", len(ranks))
	}
	var m core.Matches
	d.oracle.Find(prompt, &m)
	want := map[core.Holder][event.NumTiers]uint32{}
	for t := range event.Tier(event.NumTiers) {
		m.Each(t, func(h core.Holder, depth uint32) {
			w := want[h]
			w[t] = depth
			want[h] = w
		})
	}
	for i := range ranks {
		k := &ranks[i]
		is := want[holderOf(k.RankID)]
		if unknown(k.Worker) {
			is = [event.NumTiers]uint32{}
		}
		if k.Cached != is || k.Unknown != unknown(k.Worker) {
			d.t.Errorf("rank %v counts with %v, unknown %v; the oracle says %v, unknown %v", k.RankID, k.Cached, k.Unknown, is, unknown(k.Worker))
		}
	}
}

// Whatever a share does in place of its answer, choices go on within the deadline, and what
// its workers hold is unknown and not nothing; that ends when it answers again.
func TestChoicesGoOnWithoutAShare(t *testing.T) {
	const wait = 300 * time.Millisecond
	routing := route.DefaultSettings()
	d := newDivided(t, routing)
	d.publish(300)
	a, r := open(t, d.config(routing, wait))
	d.workers(r)
	d.known(a, r)
	const gone = 2
	ofGone := func(worker uint64) bool { return stream.Partition(worker, 4) == gone }
	nobody := func(uint64) bool { return false }
	prompt := slices.MaxFunc(d.chains, func(a, b []uint64) int { return len(a) - len(b) })
	choose := func(unknown func(uint64) bool) error {
		best, err := r.BestWorker(t.Context(), route.Prompt{Local: prompt}, route.Options{Explain: true})
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(best.Ranks, func(k route.Explained) bool { return k.Unknown != unknown(k.Worker) }); i >= 0 {
			return fmt.Errorf("rank %v is unknown: %v", best.Ranks[i].RankID, best.Ranks[i].Unknown)
		}
		d.judge(prompt, best.Ranks, unknown)
		return nil
	}
	says := func(share string, status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Kvatlas-Share", share)
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	for reason, wrong := range map[string]http.HandlerFunc{
		"timeout": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // else nobody sees that the client has gone
			<-r.Context().Done()
		},
		"unreachable": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"status":      says("2/4", 503, "{}"),
		"other_share": says("1/4", 200, "KVA1"),
		"malformed":   says("2/4", 200, "KVA1"),
		"refused":     says("2/4", 401, "{}"),
	} {
		t.Run(reason, func(t *testing.T) {
			d.wrong[gone].Store(&wrong)
			for range 3 {
				waittest.Until(t, func() error { return choose(ofGone) })
			}
			var text strings.Builder
			if a.Replica().WriteMetrics(&text); strings.Contains(text.String(), `kvatlas_shares_missing_total{share="2/4",reason="`+reason+`"} 0`) {
				t.Error("it is not counted")
			}
			waittest.Until(t, func() error {
				if err := a.Ready(); err == nil || !strings.Contains(err.Error(), "share 2/4") {
					return fmt.Errorf("ready: %w", err)
				}
				return nil
			})
			d.known(a, r) // as it was
			d.wrong[gone].Store(nil)
			waittest.Until(t, func() error { return choose(nobody) })
			waittest.Until(t, a.Ready)
		})
	}
	k := shard.RankID{Worker: 1, DPRank: 1}
	d.stale.Store(&k)
	waittest.Until(t, func() error {
		if stale := a.Replica().Shares().Stale(); !reflect.DeepEqual(stale[space], map[shard.RankID]bool{k: true}) {
			return fmt.Errorf("stale: %v", stale)
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.BestWorker(ctx, route.Prompt{Local: prompt}, route.Options{}); err == nil {
		t.Error("a request that is over is chosen for")
	}
}

// BenchmarkChoice is a choice among 1,000 workers that all hold the first half of a prompt
// of 256 blocks: by an index of the process, and by the indexers of four shares, which run
// in this process, too, behind HTTP on loopback.
func BenchmarkChoice(b *testing.B) {
	const workers, blocks, of = 1000, 256, 4
	chain := make([]uint64, blocks)
	for i := range chain {
		chain[i] = uint64(i)*0x9E3779B97F4A7C15 + 1
	}
	routing := route.DefaultSettings()
	own := Config{Routing: routing}
	own.Replica.Log = quiet()
	whole, err := Open(b.Context(), own)
	if err != nil {
		b.Fatal(err)
	}
	over := own
	sets := [of]*shard.Set{}
	for i := range of {
		sets[i] = shard.New(shard.Config{Shards: 2})
		s, err := query.New(query.Config{}, query.Deps{
			Index: query.Shards{Set: sets[i]}, Share: stream.Share{Index: i, Of: of}, Log: quiet(), Metrics: obs.NewMetrics()})
		if err != nil {
			b.Fatal(err)
		}
		ln, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		go func() { _ = s.Serve(ln) }() // ends with Shutdown
		b.Cleanup(func() {
			_ = s.Shutdown(context.Background()) //nolint:usetesting // b's context has ended
			sets[i].Close()
		})
		over.Replica.Shares.URLs = append(over.Replica.Shares.URLs, "http://"+ln.Addr().String())
	}
	asking, err := Open(b.Context(), over)
	if err != nil {
		b.Fatal(err)
	}
	for name, a := range map[string]*Atlas{"index": whole, "shares=4": asking} {
		r, err := a.Router(space)
		if err != nil {
			b.Fatal(err)
		}
		for id := range uint64(workers) {
			if err := r.SetWorker(route.Worker{ID: id}); err != nil {
				b.Fatal(err)
			}
			batch := &event.Batch{Space: space, Worker: id, Events: []event.Event{{
				Kind: event.Stored, Engine: chain[:blocks/2], Local: chain[:blocks/2]}}}
			if a == whole {
				err = a.Apply(b.Context(), batch)
			} else if sp, err2 := sets[stream.Partition(id, of)].Open(space); err2 == nil {
				_, err = sp.ApplyWait(b.Context(), batch)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		choose := func() {
			best, err := r.BestWorker(b.Context(), route.Prompt{Local: chain}, route.Options{})
			if err != nil || best.Cached[event.Device] != blocks/2 {
				b.Fatalf("%+v %v", best, err)
			}
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				choose()
			}
		})
	}
	for _, a := range []*Atlas{whole, asking} {
		if err := a.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
