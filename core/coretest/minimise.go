package coretest

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/core"
)

// Check applies ops to a new index beside the oracle. Outcomes are compared
// after each, the state after every interval operations and at the end, with
// the extra queries besides the chosen ones. It returns the index of the
// operation after which they differed. A panic of the index counts as a
// difference.
func Check(newIndex func() core.Index, ops []Op, interval int, extra ...[]uint64) (at int, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	x := newIndex()
	c := NewChecker(x, uint64(len(ops)))
	for at = range ops {
		announce(x, ops, at)
		if err := c.Apply(&ops[at]); err != nil {
			return at, err
		}
		if (at+1)%interval != 0 && at+1 != len(ops) {
			continue
		}
		for _, q := range extra {
			if err := c.Find(q); err != nil {
				return at, err
			}
		}
		if err := c.State(16); err != nil {
			return at, err
		}
	}
	return at, nil
}

// announce tells the index what comes after an operation, as a shard does: mostly the
// next one, seldom nothing or another one, as it need not be true.
func announce(x core.Index, ops []Op, at int) {
	p, ok := x.(core.Prefetcher)
	next := at + 1
	switch at % 8 {
	case 5:
		return
	case 6:
		next = at * 7 % len(ops)
	}
	if ok && next < len(ops) {
		p.Prefetch(ops[next].Holder, &ops[next].Event)
		p.PrefetchSingles(ops[next].Holder, ops[next].Event.Engine)
	}
}

// Minimise returns a history, as short as it finds within the time, that
// fails like ops does, and its error.
func Minimise(newIndex func() core.Index, ops []Op, err error, limit time.Duration) ([]Op, error) {
	deadline := time.Now().Add(limit)
	try := func(ops []Op) ([]Op, error) {
		var extra [][]uint64
		if m := (*Mismatch)(nil); errors.As(err, &m) {
			extra = append(extra, m.Query)
		}
		at, err := Check(newIndex, ops, max(1, len(ops)/16), extra...)
		if err == nil {
			return nil, nil
		}
		return ops[:at+1], err
	}
	ops = slices.Clone(ops)
	// First whole operations, then blocks of those that are left.
	for shrunk := true; shrunk; {
		shrunk = false
		for size := max(1, len(ops)/2); size > 0; size /= 2 {
			for i := 0; i < len(ops); {
				if time.Now().After(deadline) {
					return ops, err
				}
				cut := slices.Concat(ops[:i], ops[min(i+size, len(ops)):])
				if less, e := try(cut); e != nil {
					ops, err, shrunk = less, e, true
				} else {
					i += size
				}
			}
		}
		for i := 0; i < len(ops); i++ {
			for j := 0; i < len(ops) && j < len(ops[i].Event.Engine); {
				if time.Now().After(deadline) {
					return ops, err
				}
				cut := slices.Clone(ops)
				ev := &cut[i].Event
				if len(ev.Local) == len(ev.Engine) {
					ev.Local = slices.Delete(slices.Clone(ev.Local), j, j+1)
				}
				ev.Engine = slices.Delete(slices.Clone(ev.Engine), j, j+1)
				if less, e := try(cut); e != nil && len(ev.Engine) > 0 {
					ops, err, shrunk = less, e, true
				} else {
					j++
				}
			}
		}
	}
	return ops, err
}
