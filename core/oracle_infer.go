package core

import (
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// WhoKnows implements [Index].
func (o *Oracle) WhoKnows(hash uint64, f func(Holder) bool) (Holder, bool) {
	for _, h := range o.Holders() {
		if o.Knows(h, hash) && f(h) {
			return h, true
		}
	}
	return 0, false
}

// Infer implements [Index].
func (o *Oracle) Infer(h, from Holder, hash uint64) int {
	if o.Knows(h, hash) || !o.Knows(from, hash) {
		return 0
	}
	s, added := o.holder(h), 0
	for _, p := range o.holders[from].hashes[hash].position.path() {
		if len(p.hashes) == 0 {
			continue
		}
		engine := p.hashes[0].engine
		for _, also := range p.hashes {
			engine = min(engine, also.engine)
		}
		mine := s.root.descend(p.locals())
		if mine != nil && slices.ContainsFunc(mine.hashes, (*oracleHash).held) {
			continue
		}
		if m := s.hashes[engine]; m == nil {
			mine = s.root.make(p.locals())
			m = &oracleHash{engine: engine, position: mine}
			s.hashes[engine] = m
			mine.hashes = append(mine.hashes, m)
		} else if m.position != mine {
			continue
		}
		s.hashes[engine].copies[event.Device] = 1
		s.hashes[engine].inferred = true
		s.held[event.Device]++
		added++
	}
	return added
}

// path returns the positions from the first block to p.
func (p *oraclePosition) path() []*oraclePosition {
	var path []*oraclePosition
	for ; p.parent != nil; p = p.parent {
		path = append(path, p)
	}
	slices.Reverse(path)
	return path
}

// locals returns the content of path.
func (p *oraclePosition) locals() []uint64 {
	var locals []uint64
	for _, q := range p.path() {
		locals = append(locals, q.local)
	}
	return locals
}

// descend returns the position of the content below p, or nil.
func (p *oraclePosition) descend(locals []uint64) *oraclePosition {
	for _, l := range locals {
		if p = p.children[l]; p == nil {
			return nil
		}
	}
	return p
}

// make returns the position of the content below p, made if absent.
func (p *oraclePosition) make(locals []uint64) *oraclePosition {
	for _, l := range locals {
		p = p.child(l)
	}
	return p
}

// Inferred implements [Index].
func (o *Oracle) Inferred(h Holder) int {
	n := 0
	if s := o.holders[h]; s != nil {
		for _, name := range s.hashes {
			if name.inferred {
				n++
			}
		}
	}
	return n
}
