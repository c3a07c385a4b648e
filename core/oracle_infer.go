package core

import (
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// WhoKnows implements [Index].
func (o *Oracle) WhoKnows(name uint64, f func(Holder) bool) (Holder, bool) {
	for _, h := range o.Holders() {
		if o.Knows(h, name) && f(h) {
			return h, true
		}
	}
	return 0, false
}

// Infer implements [Index].
func (o *Oracle) Infer(h, from Holder, name uint64) int {
	if o.Knows(h, name) || !o.Knows(from, name) {
		return 0
	}
	s, added := o.holder(h), 0
	for _, p := range o.holders[from].names[name].place.path() {
		if len(p.names) == 0 {
			continue
		}
		engine := p.names[0].engine
		for _, also := range p.names {
			engine = min(engine, also.engine)
		}
		mine := s.root.descend(p.locals())
		if mine != nil && slices.ContainsFunc(mine.names, (*oracleName).held) {
			continue
		}
		if m := s.names[engine]; m == nil {
			mine = s.root.make(p.locals())
			m = &oracleName{engine: engine, place: mine}
			s.names[engine] = m
			mine.names = append(mine.names, m)
		} else if m.place != mine {
			continue
		}
		s.names[engine].copies[event.Device] = 1
		s.names[engine].inferred = true
		s.held[event.Device]++
		added++
	}
	return added
}

// path returns the places from the first block to p.
func (p *oraclePlace) path() []*oraclePlace {
	var path []*oraclePlace
	for ; p.parent != nil; p = p.parent {
		path = append(path, p)
	}
	slices.Reverse(path)
	return path
}

// locals returns the content of path.
func (p *oraclePlace) locals() []uint64 {
	var locals []uint64
	for _, q := range p.path() {
		locals = append(locals, q.local)
	}
	return locals
}

// descend returns the place of the content below p, or nil.
func (p *oraclePlace) descend(locals []uint64) *oraclePlace {
	for _, l := range locals {
		if p = p.children[l]; p == nil {
			return nil
		}
	}
	return p
}

// make returns the place of the content below p, made if absent.
func (p *oraclePlace) make(locals []uint64) *oraclePlace {
	for _, l := range locals {
		p = p.child(l)
	}
	return p
}

// Inferred implements [Index].
func (o *Oracle) Inferred(h Holder) int {
	n := 0
	if s := o.holders[h]; s != nil {
		for _, name := range s.names {
			if name.inferred {
				n++
			}
		}
	}
	return n
}
