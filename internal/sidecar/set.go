package sidecar

import (
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// maxBlocks is how many blocks a published event has at most: so few that no
// server's maximum payload splits it further, as ids would then depend on that.
const maxBlocks = 2048

// set is what one rank holds, and how raw events change it.
type set struct {
	index *core.Radix
	names []uint64 // scratch of removals
}

func newSet() *set { return &set{index: core.NewRadix(core.Options{})} }

// holder is the only one of a set's index.
const holder core.Holder = 0

// apply applies a raw event and calls emit for the changes that it makes. An
// error is emit's; then not all of the event may be applied. What is emitted
// lives until emit returns.
func (s *set) apply(ev *event.Event, countCopies bool, emit func(event.Event) error) (core.Outcome, error) {
	switch ev.Kind {
	case event.Stored:
		return s.store(ev, countCopies, emit)
	case event.Removed:
		return s.remove(ev, countCopies, emit)
	case event.Cleared:
		out := s.index.Clear(holder, ev.Tier, ev.AllTiers)
		if out.Removed == 0 && !ev.AllTiers {
			return out, nil
		}
		return out, emit(*ev)
	}
	return core.Outcome{}, nil
}

// store stores block by block, as an Index does (see core.Index): only so it is
// known which of them are new.
func (s *set) store(ev *event.Event, countCopies bool, emit func(event.Event) error) (out core.Outcome, err error) {
	n := len(ev.Engine)
	chain := len(ev.Local) > 0
	if chain {
		n = min(n, len(ev.Local))
	}
	one := event.Event{Kind: event.Stored, Tier: ev.Tier, DPRank: ev.DPRank, HasParent: chain && ev.HasParent, Parent: ev.Parent}
	run, from := one, 0 // what is new since from
	flush := func(to int) error {
		if from == to {
			return nil
		}
		run.Engine = ev.Engine[from:to]
		if chain {
			run.Local = ev.Local[from:to]
		}
		return emit(run)
	}
	end := n
	for i := range n {
		one.Engine = ev.Engine[i : i+1]
		if chain {
			one.Local = ev.Local[i : i+1]
		}
		if from == i {
			run.HasParent, run.Parent = one.HasParent, one.Parent
		}
		o := s.index.Store(holder, &one, countCopies)
		if o.UnknownParent > 0 {
			o.UnknownParent = n - i // those that follow have it as their ancestor
			out.Add(o)
			end = i
			break
		}
		out.Add(o)
		one.HasParent, one.Parent = chain, ev.Engine[i]
		switch {
		case o.Stored == 0:
			err = flush(i)
			from = i + 1
		case i+1-from == maxBlocks:
			err = flush(i + 1)
			from = i + 1
		}
		if err != nil {
			return out, err
		}
	}
	return out, flush(max(from, end))
}

func (s *set) remove(ev *event.Event, countCopies bool, emit func(event.Event) error) (out core.Outcome, err error) {
	s.names = s.names[:0]
	one := event.Event{Kind: event.Removed, Tier: ev.Tier}
	for i := range ev.Engine {
		one.Engine = ev.Engine[i : i+1]
		o := s.index.Remove(holder, &one, countCopies)
		out.Add(o)
		if o.Removed > 0 {
			s.names = append(s.names, ev.Engine[i])
		}
		if len(s.names) == maxBlocks || i == len(ev.Engine)-1 && len(s.names) > 0 {
			gone := *ev
			gone.Engine = s.names
			if err := emit(gone); err != nil {
				return out, err
			}
			s.names = s.names[:0]
		}
	}
	return out, nil
}

// dump gives what is held as an index without copies has it (see
// core.Index.Dump).
func (s *set) dump(add func(ev *event.Event, copies []uint32)) {
	s.index.Dump(holder, func(ev *event.Event, copies []uint32) bool {
		for i := range copies {
			copies[i] = min(copies[i], 1)
		}
		add(ev, copies)
		return true
	})
}

// held returns how many blocks there are, by tier.
func (s *set) held() (n [event.NumTiers]int) {
	for t := range n {
		n[t] = s.index.Held(holder, event.Tier(t))
	}
	return n
}
