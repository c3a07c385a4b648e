package coretest_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

// lockedFind runs an oracle's writes and lookups one after the other.
type lockedFind struct {
	mu    sync.Mutex
	finds atomic.Int64
	*core.Oracle
	store func(l *lockedFind, h core.Holder, ev *event.Event, count bool) core.Outcome
	find  func(l *lockedFind, local []uint64, m *core.Matches)
	alter func(l *lockedFind, q coretest.Query, a coretest.Answer)
}

func (l *lockedFind) apply(op *coretest.Op) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if op.Event.Kind == event.Stored && l.store != nil {
		l.store(l, op.Holder, &op.Event, op.Count)
		return nil
	}
	op.Apply(l.Oracle)
	return nil
}

func (l *lockedFind) newFind() func(coretest.Query) (coretest.Answer, error) {
	var m core.Matches
	return func(q coretest.Query) (coretest.Answer, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.find != nil {
			l.find(l, q.Local, &m)
		} else {
			l.Find(q.Local, &m)
		}
		l.finds.Add(1)
		a, err := coretest.ReadAnswer(&m)
		if l.alter != nil && err == nil {
			l.alter(l, q, a)
		}
		return a, err
	}
}

// yield lets a reader in between, if one is still reading.
func (l *lockedFind) yield() {
	l.mu.Unlock()
	for i, n := 0, l.finds.Load(); i < 10_000 && l.finds.Load() < n+2; i++ {
		runtime.Gosched()
	}
	l.mu.Lock()
}

func beside(l *lockedFind, g coretest.Generator, seed uint64) error {
	l.Oracle = core.NewOracle()
	return coretest.Beside(g.History(seed), seed, 2, l.apply, l.newFind)
}

func TestConcurrentAcceptsTheOracle(t *testing.T) {
	for _, g := range coretest.Generators() {
		if err := beside(&lockedFind{}, g, 1); err != nil {
			t.Errorf("%s: %v", g.Name, err)
		}
	}
}

// TestConcurrentFindsFaults checks the judge of lookups beside a writer.
func TestConcurrentFindsFaults(t *testing.T) {
	faults := map[string]*lockedFind{
		"answers of an earlier time": {find: func() func(*lockedFind, []uint64, *core.Matches) {
			old, n := core.NewOracle(), 0
			return func(l *lockedFind, local []uint64, m *core.Matches) {
				if n++; n%50 == 1 { // what was true at the last refresh
					old = clone(l.Oracle)
				}
				old.Find(local, m)
			}
		}()},
		"a level of a later time than the one above it": {alter: func(l *lockedFind, q coretest.Query, a coretest.Answer) {
			l.yield()
			for h, now := range coretest.OracleAnswer(l.Oracle, q.Local) {
				if ds, ok := a[h]; ok { // each level is right, for itself
					ds[event.Device] = now[event.Device]
					a[h] = ds
				}
			}
		}},
		"a level that is cumulative and wrong": {alter: func(_ *lockedFind, _ coretest.Query, a coretest.Answer) {
			for h, ds := range a {
				ds[event.Disk] = ds[event.HostPinned]
				a[h] = ds
			}
		}},
		"answers end early unasked": {find: func(l *lockedFind, local []uint64, m *core.Matches) {
			l.Find(local[:min(len(local), 3)], m)
		}},
		"a stored block is away while it is stored again": {store: func(l *lockedFind, h core.Holder, ev *event.Event, count bool) core.Outcome {
			if len(ev.Local) == 0 || count {
				return l.Store(h, ev, count)
			}
			gone := event.Event{Kind: event.Removed, Tier: ev.Tier}
			for _, e := range ev.Engine[:1] {
				if n, ok := l.KnownHash(h, e); ok && n.Copies[ev.Tier] == 1 {
					gone.Engine = append(gone.Engine, e)
				}
			}
			l.Remove(h, &gone, false)
			l.yield()
			return l.Store(h, ev, count)
		}},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			for _, g := range coretest.Generators() {
				for seed := range uint64(min(g.Seeds, 100)) {
					l := lockedFind{store: fault.store, find: fault.find, alter: fault.alter}
					if err := beside(&l, g, seed); err != nil {
						t.Logf("%s, seed %d: %v", g.Name, seed, err)
						return
					}
				}
			}
			t.Fatal("no generator finds it")
		})
	}
}

func clone(o *core.Oracle) *core.Oracle {
	c := core.NewOracle()
	for _, h := range o.Holders() {
		r := core.Restorer{Index: c, Holder: h}
		o.Dump(h, func(ev *event.Event, copies []uint32) bool {
			r.Add(ev, copies)
			return true
		})
		r.Finish()
	}
	return c
}
