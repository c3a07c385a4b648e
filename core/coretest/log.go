package coretest

import (
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// Log knows when each block of each holder was present in the course of a
// history, and so which answers a lookup beside it may give. It is read-only
// once made.
//
// Time counts steps: single-block operations. A lookup during which one step
// or none happened has little choice; one that overlaps a long event may see
// any part of it done.
type Log struct {
	before  []int // before[i] steps were done before operation i
	changes map[logKey]*[event.NumTiers][]int
	holders map[core.Holder]bool
}

// logKey names a block of a holder. changes holds, for every tier level, the
// steps that made it present or absent, in turn, from absent.
type logKey struct {
	holder core.Holder
	seq    uint64
}

// NewLog applies ops to an oracle step by step and takes notes. visit, if not
// nil, is called before each operation.
func NewLog(ops []Op, visit func(i int, o *core.Oracle)) *Log {
	l := &Log{changes: map[logKey]*[event.NumTiers][]int{}, holders: map[core.Holder]bool{}}
	n := notes{
		log: l, oracle: core.NewOracle(),
		names: map[logHash]core.KnownHash{}, copies: map[logKey]*[event.NumTiers]int{},
	}
	for i := range ops {
		if visit != nil {
			visit(i, n.oracle)
		}
		l.before = append(l.before, n.step)
		l.holders[ops[i].Holder] = true
		for _, s := range AppliedSteps(n.oracle, &ops[i]) {
			n.apply(&s)
		}
	}
	l.before = append(l.before, n.step)
	return l
}

// notes is the state of NewLog.
type notes struct {
	log    *Log
	oracle *core.Oracle
	step   int
	names  map[logHash]core.KnownHash // those with copies
	copies map[logKey]*[event.NumTiers]int
}

type logHash struct {
	holder core.Holder
	engine uint64
}

func (n *notes) apply(op *Op) {
	touched := op.Event.Engine
	if op.Event.Kind == event.Cleared {
		touched = nil
		for _, name := range n.oracle.KnownHashes(op.Holder) {
			touched = append(touched, name.Engine)
		}
	}
	op.Apply(n.oracle)
	if op.Event.Kind == 0 && op.Event.HasParent { // Infer, StoreFrom
		for _, name := range n.oracle.KnownHashes(op.Holder) {
			touched = append(touched, name.Engine)
		}
	}
	n.step++
	places := map[uint64]bool{}
	for _, e := range touched {
		k := logHash{op.Holder, e}
		if old, ok := n.names[k]; ok {
			n.count(op.Holder, old, -1)
			places[old.Seq] = true
			delete(n.names, k)
		}
		if name, ok := n.oracle.KnownHash(op.Holder, e); ok {
			n.count(op.Holder, name, 1)
			places[name.Seq] = true
			n.names[k] = name
		}
	}
	for seq := range places {
		n.note(logKey{op.Holder, seq})
	}
}

// count adds d for each tier on which the hash has copies.
func (n *notes) count(h core.Holder, name core.KnownHash, d int) {
	k := logKey{h, name.Seq}
	if n.copies[k] == nil {
		n.copies[k] = new([event.NumTiers]int)
	}
	for t, c := range name.Copies {
		if c > 0 {
			n.copies[k][t] += d
		}
	}
}

// note records the levels at which the last step changed the position's presence.
func (n *notes) note(k logKey) {
	c := n.log.changes[k]
	if c == nil {
		c = new([event.NumTiers][]int)
		n.log.changes[k] = c
	}
	sum := 0
	for t := range c {
		sum += n.copies[k][t]
		if present := len(c[t])%2 == 1; present != (sum > 0) {
			c[t] = append(c[t], n.step)
		}
	}
}

// Allowed checks an answer that was asked for when the first done operations
// had ended, and came when started operations had begun.
func (l *Log) Allowed(query Query, a Answer, done, started int) error {
	from, to := l.before[done], l.before[started]
	seqs := blockhash.SequenceHashes(nil, query.Local)
	for h := range a {
		if !l.holders[h] {
			return fmt.Errorf("holder %d, which never stored anything, is in the answer to %v", h, query)
		}
	}
	if err := a.cumulative(len(query.Local)); err != nil {
		return fmt.Errorf("%w (operations %d to %d, query %v)", err, done, started, query)
	}
	leader, leads := a.leader()
	for _, h := range slices.Sorted(maps.Keys(l.holders)) {
		lowerBound := query.Early && leads && h == leader
		for t, d := range a[h] {
			for i, seq := range seqs[:min(len(seqs), int(d)+1)] {
				sometimesPresent, sometimesAbsent := l.during(logKey{h, seq}, t, from, to)
				switch {
				case i < int(d) && !sometimesPresent:
					return fmt.Errorf("holder %d has depth %d at level %d, but block %d was absent all the time (operations %d to %d, query %v)", h, d, t, i, done, started, query)
				case i == int(d) && !sometimesAbsent && !lowerBound:
					return fmt.Errorf("holder %d has depth %d at level %d, but block %d was present all the time (operations %d to %d, query %v)", h, d, t, i, done, started, query)
				}
			}
		}
	}
	return nil
}

// during returns whether the block was present, and whether it was absent, at
// some moment from one step's end to another's.
func (l *Log) during(k logKey, level, from, to int) (present, absent bool) {
	c := l.changes[k]
	if c == nil {
		return false, true
	}
	steps := c[level]
	n := sort.SearchInts(steps, from+1) // changes until from
	if n < len(steps) && steps[n] <= to {
		return true, true
	}
	return n%2 == 1, n%2 == 0
}
