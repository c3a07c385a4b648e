package sidecar

import (
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/groups"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/recovery"
)

// maxBlocks is how many blocks a published event has at most: so few that no
// server's maximum payload splits it further, as ids would then depend on that.
const maxBlocks = 2048

// set is what one rank holds, and how raw events change it. Of an incomplete
// stream, which lacks events that nobody has any more, it also passes on what it
// cannot place: blocks below unknown parents and removals of unknown blocks.
// Readers may know them from other workers.
type set struct {
	index   *core.Radix
	orphans recovery.Orphans // what was stored below unknown parents
	names   []uint64         // scratch of removals
	groups  *groups.Table    // of cache groups but the one that is indexed; nil: none was met
	// ungrouped says that blocks of such groups may be held that are not known: then
	// nothing is said of them until all is cleared.
	ungrouped bool
}

func newSet() *set { return &set{index: core.NewRadix(core.Options{})} }

// holder is the only one of a set's index.
const holder core.Holder = 0

// apply applies an event of the engine and calls emit for the changes that it makes. An
// error is emit's; then not all of the event may be applied. What is emitted
// lives until emit returns.
func (s *set) apply(ev *event.Event, copies bool, emit func(event.Event) error) (core.Outcome, error) {
	switch {
	case ev.Group > 0:
		return s.ofGroup(ev, copies, emit)
	case ev.Kind == event.Stored && len(ev.Local) > 0:
		return s.store(ev, copies, emit)
	case ev.Kind == event.Stored:
		return s.storeNames(ev, copies, emit)
	case ev.Kind == event.Removed:
		return s.remove(ev, copies, emit)
	case ev.Kind == event.Cleared:
		out := s.index.Clear(holder, ev.Tier, ev.AllTiers)
		s.orphans.Clear(ev.Tier, ev.AllTiers)
		s.ungrouped = s.ungrouped && !ev.AllTiers
		if s.groups != nil {
			out.Add(s.groups.Apply(ev, copies))
		}
		if out.Removed == 0 && !ev.AllTiers && !ev.Incomplete {
			return out, nil
		}
		return out, emit(*ev)
	}
	return core.Outcome{}, nil
}

// share applies an event of a tier that is a pool's, and passes all of it on: others change
// what is there as well, and what was said long ago may be old.
func (s *set) share(ev *event.Event, _ bool, emit func(event.Event) error) (core.Outcome, error) {
	out, err := s.apply(ev, false, func(event.Event) error { return nil })
	all := chunk{ev: ev, emit: emit}
	for i := 0; i < len(ev.Engine) && err == nil; i++ {
		err = all.add(i)
	}
	if err == nil {
		err = all.flush()
	}
	return out, err
}

// chunk gathers neighbouring blocks of an event to emit them as one.
type chunk struct {
	ev       *event.Event
	from, to int
	emit     func(event.Event) error
}

// add puts block i in.
func (c *chunk) add(i int) (err error) {
	if c.to != i || c.to-c.from == maxBlocks {
		err = c.flush()
		c.from = i
	}
	c.to = i + 1
	return err
}

func (c *chunk) flush() error {
	if c.from == c.to {
		return nil
	}
	out := *c.ev
	out.Engine = c.ev.Engine[c.from:c.to]
	if len(c.ev.Local) > 0 {
		out.Local = c.ev.Local[c.from:c.to]
		if c.from > 0 {
			out.HasParent, out.Parent = true, c.ev.Engine[c.from-1]
		}
	}
	c.from = c.to
	return c.emit(out)
}

// store stores block by block, as an Index does (see core.Index): only so it is
// known which of them are new.
func (s *set) store(ev *event.Event, copies bool, emit func(event.Event) error) (out core.Outcome, err error) {
	n := min(len(ev.Engine), len(ev.Local))
	one := *ev
	fresh := chunk{ev: ev, emit: emit}
	for i := range n {
		one.Engine, one.Local = ev.Engine[i:i+1], ev.Local[i:i+1]
		o := s.index.Store(holder, &one, copies)
		if o.UnknownParent > 0 {
			o.UnknownParent = n - i // those that follow have it as their ancestor
			out.Add(o)
			if err == nil && ev.Incomplete {
				one.Engine, one.Local = ev.Engine[i:n], ev.Local[i:n]
				s.orphans.Store(&one, copies)
				for ; i < n && err == nil; i++ {
					err = fresh.add(i)
				}
			}
			break
		}
		out.Add(o)
		if o.Stored > 0 {
			err = fresh.add(i)
		}
		s.orphans.Attach(s.index, holder, one.Engine, copies)
		if err != nil {
			return out, err
		}
		one.HasParent, one.Parent = true, ev.Engine[i]
	}
	if err != nil {
		return out, err
	}
	return out, fresh.flush()
}

// storeNames stores blocks that are given by their hashes alone.
func (s *set) storeNames(ev *event.Event, copies bool, emit func(event.Event) error) (out core.Outcome, err error) {
	one := *ev
	fresh := chunk{ev: ev, emit: emit}
	for i := range ev.Engine {
		one.Engine = ev.Engine[i : i+1]
		o := s.index.Store(holder, &one, copies)
		out.Add(o)
		if o.UnknownBlock > 0 {
			s.orphans.StoreHashOnly(ev.Engine[i], ev.Tier, copies)
		}
		if o.Stored > 0 || o.UnknownBlock > 0 && ev.Incomplete {
			if err := fresh.add(i); err != nil {
				return out, err
			}
		}
	}
	return out, fresh.flush()
}

func (s *set) remove(ev *event.Event, copies bool, emit func(event.Event) error) (out core.Outcome, err error) {
	s.names = s.names[:0]
	one := event.Event{Kind: event.Removed, Tier: ev.Tier}
	for i := range ev.Engine {
		one.Engine = ev.Engine[i : i+1]
		o := s.index.Remove(holder, &one, copies)
		out.Add(o)
		if o.Removed > 0 || o.Unknown > 0 && s.orphans.Remove(ev.Engine[i], ev.Tier, copies) && ev.Incomplete {
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

// ofGroup applies an event of a cache group of which the index knows no places.
func (s *set) ofGroup(ev *event.Event, copies bool, emit func(event.Event) error) (out core.Outcome, err error) {
	if s.ungrouped {
		return out, nil
	}
	if s.groups == nil {
		s.groups = groups.NewTable()
	}
	s.names = s.names[:0]
	one, changed := *ev, *ev
	for i := range ev.Engine {
		one.Engine = ev.Engine[i : i+1]
		o := s.groups.Apply(&one, copies)
		out.Add(o)
		if o.Stored+o.Removed > 0 {
			s.names = append(s.names, ev.Engine[i])
		}
		if len(s.names) == maxBlocks || i == len(ev.Engine)-1 && len(s.names) > 0 {
			changed.Engine = s.names
			if err := emit(changed); err != nil {
				return out, err
			}
			s.names = s.names[:0]
		}
	}
	return out, nil
}

// dump gives what is held as an index without copies has it (see
// core.Index.Dump and recovery.Orphans.Dump).
func (s *set) dump(add func(ev *event.Event, copies []uint32)) {
	one := func(ev *event.Event, copies []uint32) {
		for i := range copies {
			copies[i] = min(copies[i], 1)
		}
		add(ev, copies)
	}
	if s.groups != nil {
		s.groups.Dump(one)
	}
	s.index.Dump(holder, func(ev *event.Event, copies []uint32) bool {
		one(ev, copies)
		return true
	})
	s.orphans.Dump(one)
}

// held returns how many blocks there are, by tier.
func (s *set) held() (n [event.NumTiers]int) {
	for t := range n {
		n[t] = s.index.Held(holder, event.Tier(t))
	}
	return n
}
