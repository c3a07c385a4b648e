package coretest

import (
	"math/rand/v2"
	"slices"

	"github.com/kvatlas/kvatlas/core"
)

// Prompts chooses queries that are worth asking after a history.
type Prompts struct {
	r       *rand.Rand
	local   []uint64 // distinct
	isLocal map[uint64]bool
	stored  []Op // the last stores with content
}

// NewPrompts returns a source of prompts whose choice is a function of r.
func NewPrompts(r *rand.Rand) *Prompts { return &Prompts{r: r, isLocal: map[uint64]bool{}} }

// Note remembers what an operation stores.
func (p *Prompts) Note(op *Op) {
	for _, l := range op.Event.Local {
		if !p.isLocal[l] {
			p.isLocal[l] = true
			p.local = append(p.local, l)
		}
	}
	if len(op.Event.Local) > 0 && len(op.Event.Engine) > 0 {
		if len(p.stored) == 256 {
			p.stored = slices.Delete(p.stored, 0, 128)
		}
		p.stored = append(p.stored, *op)
	}
}

// Next makes a prompt: a chain that was stored and is still known, cut,
// changed, extended or as it is, or a random one.
func (p *Prompts) Next(o *core.Oracle) []uint64 {
	if len(p.local) == 0 {
		return []uint64{1}
	}
	random := func() uint64 { return p.local[p.r.IntN(len(p.local))] }
	var q []uint64
	for range 4 {
		if len(p.stored) == 0 || p.r.IntN(4) == 0 {
			break
		}
		op := &p.stored[p.r.IntN(len(p.stored))]
		e := op.Event.Engine[len(op.Event.Engine)-1]
		if p.r.IntN(3) == 0 {
			e = op.Event.Engine[p.r.IntN(len(op.Event.Engine))]
		}
		if q = o.Chain(op.Holder, e); q != nil {
			break
		}
	}
	if q == nil {
		q = make([]uint64, p.r.IntN(8))
		for i := range q {
			q[i] = random()
		}
		return q
	}
	switch p.r.IntN(5) {
	case 0:
		q = q[:p.r.IntN(len(q)+1)]
	case 1:
		q[p.r.IntN(len(q))] = random()
	case 2:
		q[p.r.IntN(len(q))]++
	case 3:
		for range 1 + p.r.IntN(5) {
			q = append(q, random())
		}
	}
	return q
}
