package coretest

import (
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/core"
)

// Interrupted makes an empty index and a lookup in it that calls between after
// each part of its reading, where a test may write.
type Interrupted func() (x core.Index, find func(local []uint64, m *core.Matches, between func()))

// RunInterrupted checks lookups that the writer interrupts: what RunConcurrent
// checks, for interleavings that a seed chooses.
func RunInterrupted(t *testing.T, newIndex Interrupted) {
	for _, g := range Generators() {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range Seeds(max(1, g.Seeds/8)) {
				if err := newIndex.check(g.History(seed), seed); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		})
	}
}

// FuzzInterrupted does it with operations decoded from bytes.
func FuzzInterrupted(f *testing.F, newIndex Interrupted) {
	f.Fuzz(func(t *testing.T, data []byte) {
		ops := Decode(data)
		if err := newIndex.check(ops, uint64(len(data))); err != nil {
			t.Fatalf("%s\n%v", Print(ops), err)
		}
	})
}

func (newIndex Interrupted) check(ops []Op, seed uint64) error {
	log, queries := plan(ops, seed, 1)
	x, find := newIndex()
	r := rand.New(rand.NewPCG(seed, 7))
	var m core.Matches
	for done := 0; done < len(ops); {
		before := done
		q := Query{Local: queries[min(len(queries)-1, before+r.IntN(4))], Early: r.IntN(8) == 0}
		m.EarlyExit = q.Early
		find(q.Local, &m, func() {
			for n := r.IntN(3); n > 0 && done < len(ops); n-- {
				ops[done].Apply(x)
				done++
			}
		})
		a, err := ReadAnswer(&m)
		if err == nil {
			err = log.Allowed(q, a, before, done)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
