package coretest

import (
	"fmt"
	"math"
	"strings"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// Op is one operation on an index. Event.Kind says which: Stored, Removed and
// Cleared as on the wire, 0 for Forget or, with AllTiers, for StoreCopies, DPRank of each; and,
// with a parent, for Infer of it or, with AllTiers, for StoreFrom of it: from holder Engine[0] or,
// of those whose bits of DPRank are not set, the lowest.
type Op struct {
	Holder core.Holder
	Count  bool // count copies
	Event  event.Event
}

// Apply runs the operation. What Forget returns is counted as Replaced, as
// package shard does.
func (op *Op) Apply(x core.Index) core.Outcome {
	switch op.Event.Kind {
	case event.Stored:
		return x.Store(op.Holder, &op.Event, op.Count)
	case event.Removed:
		return x.Remove(op.Holder, &op.Event, op.Count)
	case event.Cleared:
		return x.Clear(op.Holder, op.Event.Tier, op.Event.AllTiers)
	case 0:
		if op.Event.HasParent {
			return op.inferOrAdopt(x)
		}
		if op.Event.AllTiers {
			var out core.Outcome
			for _, e := range op.Event.Engine {
				out.Add(x.StoreCopies(op.Holder, op.Event.Tier, e, op.Event.DPRank))
			}
			return out
		}
		return core.Outcome{Replaced: x.Forget(op.Holder, op.Event.Engine)}
	}
	panic(fmt.Sprintf("no such kind of operation: %d", op.Event.Kind))
}

func (op *Op) inferOrAdopt(x core.Index) core.Outcome {
	hash := op.Event.Parent
	var from core.Holder
	if len(op.Event.Engine) > 0 {
		from = core.Holder(op.Event.Engine[0])
	} else {
		var ok bool
		from, ok = x.WhoKnows(hash, func(h core.Holder) bool { return op.Event.DPRank>>(h%8)&1 == 0 })
		if !ok {
			return core.Outcome{UnknownParent: 1}
		}
	}
	if op.Event.AllTiers {
		return x.StoreFrom(op.Holder, from, hash, op.Event.Tier)
	}
	return core.Outcome{Stored: x.Infer(op.Holder, from, hash)}
}

// AppliedSteps returns single-block operations that together do what op does
// to an index in the oracle's state.
func AppliedSteps(o *core.Oracle, op *Op) []Op {
	ev := &op.Event
	switch {
	case ev.Kind == event.Cleared || len(ev.Engine) < 2:
		return []Op{*op}
	case ev.Kind == event.Stored && len(ev.Local) > 0 && ev.HasParent && !o.Knows(op.Holder, ev.Parent):
		return nil // nothing of it is stored
	}
	var steps []Op
	for i := range ev.Engine {
		s := Op{Holder: op.Holder, Count: op.Count, Event: *ev}
		s.Event.Engine = ev.Engine[i : i+1]
		if len(ev.Local) > 0 {
			s.Event.Local = ev.Local[i : i+1]
			if i > 0 { // the hash of the block before has just been bound there
				s.Event.HasParent, s.Event.Parent = true, ev.Engine[i-1]
			}
		}
		steps = append(steps, s)
	}
	return steps
}

// String prints the operation as a Go literal.
func (op Op) String() string {
	ev := &op.Event
	var b strings.Builder
	field := func(name string, v any) { fmt.Fprintf(&b, ", %s: %v", name, v) }
	kind := [...]string{"0", "event.Stored", "event.Removed", "event.Cleared"}[ev.Kind]
	fmt.Fprintf(&b, "{Holder: %d, Count: %v, Event: event.Event{Kind: %s", op.Holder, op.Count, kind)
	if ev.Kind != 0 || ev.AllTiers {
		field("Tier", ev.Tier)
	}
	if ev.AllTiers {
		field("AllTiers", true)
	}
	if ev.HasParent {
		field("HasParent", true)
		field("Parent", goHash(ev.Parent))
	}
	if ev.DPRank > 0 {
		field("DPRank", ev.DPRank)
	}
	if len(ev.Engine) > 0 {
		field("Engine", goHashes(ev.Engine))
	}
	if len(ev.Local) > 0 {
		field("Local", goHashes(ev.Local))
	}
	b.WriteString("}}")
	return b.String()
}

func goHash(h uint64) string {
	if h == math.MaxUint64 {
		return "math.MaxUint64"
	}
	return fmt.Sprint(h)
}

func goHashes(hs []uint64) string {
	s := make([]string, len(hs))
	for i, h := range hs {
		s[i] = goHash(h)
	}
	return "[]uint64{" + strings.Join(s, ", ") + "}"
}

// Print returns the operations as Go steps.
func Print(ops []Op) string {
	var b strings.Builder
	b.WriteString("[]coretest.Op{\n")
	for _, op := range ops {
		fmt.Fprintf(&b, "\t%v,\n", op)
	}
	b.WriteString("}")
	return b.String()
}
