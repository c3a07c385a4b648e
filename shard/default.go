package shard

import (
	"sync"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// defaultIndex makes the index that Config.NewIndex has by default.
func defaultIndex() core.Index { return &lockedOracle{oracle: core.NewOracle()} }

// lockedOracle lets readers run beside the writer of an Oracle.
type lockedOracle struct {
	mu     sync.RWMutex
	oracle *core.Oracle
}

func (l *lockedOracle) Store(h core.Holder, ev *event.Event, countCopies bool) core.Outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.oracle.Store(h, ev, countCopies)
}

func (l *lockedOracle) Remove(h core.Holder, ev *event.Event, countCopies bool) core.Outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.oracle.Remove(h, ev, countCopies)
}

func (l *lockedOracle) Clear(h core.Holder, tier event.Tier, allTiers bool) core.Outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.oracle.Clear(h, tier, allTiers)
}

func (l *lockedOracle) Forget(h core.Holder, engine []uint64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.oracle.Forget(h, engine)
}

func (l *lockedOracle) Find(local []uint64, m *core.Matches) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	l.oracle.Find(local, m)
}

// The rest is called by the writer alone.

func (l *lockedOracle) Knows(h core.Holder, engine uint64) bool { return l.oracle.Knows(h, engine) }

func (l *lockedOracle) Held(h core.Holder, tier event.Tier) int { return l.oracle.Held(h, tier) }

func (l *lockedOracle) Digest(space uint64, identity func(core.Holder) (uint64, uint32)) uint64 {
	return l.oracle.Digest(space, identity)
}

func (l *lockedOracle) Dump(h core.Holder, f func(*event.Event, []uint32) bool) {
	l.oracle.Dump(h, f)
}
