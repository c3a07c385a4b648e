package coretest

import (
	"fmt"
	"maps"
	"math"
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

// cumulative checks what holds for every answer, also beside a writer: no level
// is shorter than one below it, and none is longer than the prompt.
func (a Answer) cumulative(blocks int) error {
	for h, ds := range a {
		if !slices.IsSorted(ds[:]) {
			return fmt.Errorf("holder %d has depths %v, which are not cumulative", h, ds)
		}
		if longest := int(ds[event.NumTiers-1]); longest == 0 || longest > blocks {
			return fmt.Errorf("holder %d has depths %v in a prompt of %d blocks", h, ds, blocks)
		}
	}
	return nil
}

// leader returns the holder that matches further than all others, if one does.
func (a Answer) leader() (h core.Holder, ok bool) {
	longest := uint32(0)
	for o, ds := range a {
		if d := ds[event.NumTiers-1]; d > longest {
			h, longest, ok = o, d, true
		} else if d == longest {
			ok = false
		}
	}
	return h, ok
}

// ReadAnswer takes the answer out of m and checks that m agrees with itself.
func ReadAnswer(m *core.Matches) (Answer, error) {
	a := Answer{}
	var err error
	m.EachHolder(func(h core.Holder, depth Depths) {
		if _, ok := a[h]; ok {
			err = fmt.Errorf("holder %d is in the answer twice", h)
		}
		a[h] = depth
	})
	if err == nil {
		err = a.cumulative(math.MaxInt32)
	}
	for t := range event.Tier(event.NumTiers) {
		want := map[core.Holder]uint32{}
		blocks := uint64(0)
		for h, ds := range a {
			if ds[t] > 0 {
				want[h] = ds[t]
				blocks += uint64(ds[t])
			}
		}
		have := map[core.Holder]uint32{}
		m.Each(t, func(h core.Holder, d uint32) { have[h] += d })
		if err == nil && !maps.Equal(have, want) {
			err = fmt.Errorf("level %d is %v, of all levels %v", t, have, want)
		}
		if n, sum := m.Sum(t); err == nil && (n != len(want) || sum != blocks) {
			err = fmt.Errorf("Sum(%d) = %d holders, %d blocks; Each gives %d, %d", t, n, sum, len(want), blocks)
		}
	}
	return a, err
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
// lookups, all holders' counts, up to 4,096 of the known hashes, the digest and
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
	hashes := slices.Sorted(maps.Keys(c.engine))
	if len(hashes) > 4096 {
		c.r.Shuffle(len(hashes), func(i, j int) { hashes[i], hashes[j] = hashes[j], hashes[i] })
		hashes = hashes[:4096]
	}
	for _, h := range slices.Sorted(maps.Keys(c.holders)) {
		if have, want := c.Index.Empty(h), c.Oracle.Empty(h); have != want {
			return fmt.Errorf("Empty(%d) = %v, want %v", h, have, want)
		}
		for t := range event.Tier(event.NumTiers) {
			if have, want := c.Index.Held(h, t), c.Oracle.Held(h, t); have != want {
				return fmt.Errorf("Held(%d, %d) = %d, want %d", h, t, have, want)
			}
		}
		if have, want := c.Index.Inferred(h), c.Oracle.Inferred(h); have != want {
			return fmt.Errorf("Inferred(%d) = %d, want %d", h, have, want)
		}
		for _, e := range hashes {
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
		if have, want := o.KnownHashes(h), c.Oracle.KnownHashes(h); !reflect.DeepEqual(have, want) {
			return fmt.Errorf("dump of holder %d restores\n  have %v\n  want %v", h, have, want)
		}
	}
	return nil
}
