package coretest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// Depths is one holder's answer: its depth at every tier level.
type Depths = [event.NumTiers]uint32

// Answer is what a Find found, in a form that can be compared.
type Answer map[core.Holder]Depths

// ReadAnswer takes the answer out of m and checks that m agrees with itself.
func ReadAnswer(m *core.Matches) (Answer, error) {
	a := Answer{}
	for t := range event.Tier(event.NumTiers) {
		var err error
		holders, blocks := 0, uint64(0)
		m.Each(t, func(h core.Holder, d uint32) {
			ds := a[h]
			if ds[t] != 0 {
				err = fmt.Errorf("holder %d is in the answer of level %d twice", h, t)
			}
			if d == 0 {
				err = fmt.Errorf("holder %d is in the answer of level %d with depth 0", h, t)
			}
			ds[t] = d
			a[h] = ds
			holders, blocks = holders+1, blocks+uint64(d)
		})
		if err != nil {
			return nil, err
		}
		if gotH, gotB := m.Sum(t); gotH != holders || gotB != blocks {
			return nil, fmt.Errorf("Sum(%d) = %d holders, %d blocks; Each gives %d, %d", t, gotH, gotB, holders, blocks)
		}
	}
	for t := range event.Tier(event.NumTiers) {
		if !m.Same(t) {
			continue
		}
		for h, ds := range a {
			if ds[t] != ds[event.Device] {
				return nil, fmt.Errorf("Same(%d), but holder %d has depths %v", t, h, ds)
			}
		}
	}
	return a, nil
}

// OracleAnswer returns what the oracle finds.
func OracleAnswer(o *core.Oracle, query []uint64) Answer {
	var m core.Matches
	o.Find(query, &m)
	a, err := ReadAnswer(&m)
	if err != nil {
		panic(fmt.Sprintf("the oracle's Find(%s): %v", goHashes(query), err))
	}
	return a
}

// Checker applies operations to an index and to the oracle and compares them.
type Checker struct {
	Index  core.Index
	Oracle *core.Oracle

	r       *rand.Rand
	holders map[core.Holder]bool
	engine  map[uint64]bool
	prompts *Prompts
	m       core.Matches
}

// NewChecker returns a checker of an empty index whose choice of queries is a
// function of the seed.
func NewChecker(x core.Index, seed uint64) *Checker {
	r := rand.New(rand.NewPCG(seed, 2))
	return &Checker{
		Index: x, Oracle: core.NewOracle(), r: r, prompts: NewPrompts(r),
		holders: map[core.Holder]bool{}, engine: map[uint64]bool{},
	}
}

// note remembers what an operation names, to ask for it later.
func (c *Checker) note(op *Op) {
	c.holders[op.Holder] = true
	for _, e := range op.Event.Engine {
		c.engine[e] = true
	}
	c.prompts.Note(op)
}

// Apply runs op on both and compares the outcomes.
func (c *Checker) Apply(op *Op) error {
	c.note(op)
	if got, want := op.Apply(c.Index), op.Apply(c.Oracle); got != want {
		return fmt.Errorf("outcome of %v:\n  have %+v\n  want %+v", op, got, want)
	}
	return nil
}

// Mismatch is an answer that differs from the oracle's.
type Mismatch struct {
	Query      []uint64
	Have, Want Answer
}

func (m *Mismatch) Error() string {
	return fmt.Sprintf("Find(%s):\n  have %v\n  want %v", goHashes(m.Query), m.Have, m.Want)
}

// Find compares the answers to one query.
func (c *Checker) Find(query []uint64) error {
	c.Index.Find(query, &c.m)
	have, err := ReadAnswer(&c.m)
	if err != nil {
		return fmt.Errorf("Find(%s): %w", goHashes(query), err)
	}
	want := OracleAnswer(c.Oracle, query)
	if !maps.Equal(have, want) {
		return &Mismatch{slices.Clone(query), have, want}
	}
	return nil
}

// State compares everything that can be asked of the two: about queries
// lookups, all holders' counts, up to 4,096 of the known names, the digest and
// the dump.
func (c *Checker) State(queries int) error {
	if err := c.Find(nil); err != nil {
		return err
	}
	for range queries {
		if err := c.Find(c.prompts.Next(c.Oracle)); err != nil {
			return err
		}
	}
	names := slices.Sorted(maps.Keys(c.engine))
	if len(names) > 4096 {
		c.r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		names = names[:4096]
	}
	for _, h := range slices.Sorted(maps.Keys(c.holders)) {
		for t := range event.Tier(event.NumTiers) {
			if have, want := c.Index.Held(h, t), c.Oracle.Held(h, t); have != want {
				return fmt.Errorf("Held(%d, %d) = %d, want %d", h, t, have, want)
			}
		}
		if have, want := c.Index.Inferred(h), c.Oracle.Inferred(h); have != want {
			return fmt.Errorf("Inferred(%d) = %d, want %d", h, have, want)
		}
		for _, e := range names {
			if have, want := c.Index.Knows(h, e), c.Oracle.Knows(h, e); have != want {
				return fmt.Errorf("Knows(%d, %s) = %v, want %v", h, goHash(e), have, want)
			}
			if have, want := c.Index.KnowsChain(h, e), c.Oracle.KnowsChain(h, e); have != want {
				return fmt.Errorf("KnowsChain(%d, %s) = %v, want %v", h, goHash(e), have, want)
			}
		}
	}
	const space = 77
	if have, want := c.Index.Digest(space, identity), c.Oracle.Digest(space, identity); have != want {
		return fmt.Errorf("digest = %#x, want %#x", have, want)
	}
	return c.dump()
}

func identity(h core.Holder) (worker uint64, dpRank uint32) { return 1000 + uint64(h)/2, h % 2 }

// dump rebuilds every holder from the index's dump in an empty oracle.
func (c *Checker) dump() error {
	for h := range c.holders {
		o := core.NewOracle()
		r := core.Restorer{Index: o, Holder: h}
		c.Index.Dump(h, func(ev *event.Event, copies []uint32) bool {
			r.Add(ev, copies)
			return true
		})
		r.Finish()
		if have, want := o.Names(h), c.Oracle.Names(h); !reflect.DeepEqual(have, want) {
			return fmt.Errorf("dump of holder %d restores\n  have %v\n  want %v", h, have, want)
		}
	}
	return nil
}
