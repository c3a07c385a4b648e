package coretest

import (
	"math"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// maxFuzzOps bounds a fuzzed history: longer ones find nothing that these do
// not, and take their time.
const maxFuzzOps = 400

// Fuzz checks an index with operations decoded from bytes.
func Fuzz(f *testing.F, newIndex func() core.Index) {
	f.Fuzz(func(t *testing.T, data []byte) {
		ops := Decode(data)
		if _, err := Check(newIndex, ops, 1+len(ops)/8); err != nil {
			t.Fatalf("%s\n%v", Print(ops), err)
		}
	})
}

// Decode reads operations from bytes, whatever they are. An operation is a
// byte of kind and flags, one of holder and tier, for a store with a parent, and
// for StoreFrom, one byte of parent, one of length, and a byte for each block: hashes and
// contents are one nibble each, so that they collide.
//
//	byte 0: bits 0-2 kind, 3 copies counted, 4 parent, 5 hash-only, or StoreCopies
//	        for Forget, with a byte of how many, 6 one block after the other (lengths
//	        up to 64, counting up), 7 by a crowd of further holders as well
//	byte 1: bits 0-2 holder, 3-4 tier, 5-7 length - 1
func Decode(data []byte) []Op {
	var ops []Op
	take := func() byte {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return b
	}
	for len(data) > 0 && len(ops) < maxFuzzOps {
		a, b := take(), take()
		op := Op{Holder: holderNumbers[b&7], Count: a&8 != 0}
		ev := &op.Event
		ev.Tier = event.Tier(b >> 3 & 3)
		blocks := int(b>>5) + 1
		content := true
		switch a & 7 {
		case 0, 1, 2, 3:
			ev.Kind = event.Stored
			content = a&32 == 0
			if a&16 != 0 {
				ev.HasParent, ev.Parent = true, nibble(take())
			}
		case 4, 5:
			ev.Kind, content = event.Removed, false
		case 6:
			ev.Kind, ev.AllTiers = event.Cleared, a&16 != 0
			blocks = 0
		case 7: // Forget, StoreCopies or StoreFrom
			content = false
			switch {
			case a&16 != 0:
				ev.HasParent, ev.AllTiers, ev.Parent = true, true, nibble(take())
				blocks = 0
			case a&32 != 0:
				ev.AllTiers, ev.DPRank = true, uint32(nibble(take())) //nolint:gosec // the most, too
			}
		}
		if a&64 != 0 && blocks > 0 {
			first := uint64(take())
			for i := range uint64(blocks * 8) {
				ev.Engine = append(ev.Engine, first+i)
				if content {
					ev.Local = append(ev.Local, first+i)
				}
			}
		} else {
			for range blocks {
				c := take()
				ev.Engine = append(ev.Engine, nibble(c))
				if content {
					ev.Local = append(ev.Local, nibble(c>>4)&3)
				}
			}
		}
		ops = append(ops, op)
		for i := core.Holder(0); a&128 != 0 && i < crowd; i++ {
			op.Holder = firstOfCrowd + i
			ops = append(ops, op)
		}
	}
	return ops
}

// The crowd is more holders than a list of held lengths takes.
const (
	firstOfCrowd = 128
	crowd        = 20
)

// FuzzHolders returns every holder that decoded operations may have, by rising
// number.
func FuzzHolders() []core.Holder {
	hs := slices.Clone(holderNumbers[:])
	for i := range core.Holder(crowd) {
		hs = append(hs, firstOfCrowd+i)
	}
	slices.Sort(hs)
	return hs
}

// nibble returns a hash: mostly a small one, so that hashes collide with those
// of long stores too.
func nibble(b byte) uint64 {
	if b &= 15; b < 15 {
		return uint64(b)
	}
	return math.MaxUint64
}

// FuzzConcurrent checks lookups beside a writer with operations decoded from
// bytes.
func FuzzConcurrent(f *testing.F, newIndex func() core.Index) {
	f.Fuzz(func(t *testing.T, data []byte) {
		ops := Decode(data)
		if len(ops) == 0 {
			return
		}
		if err := besideIndex(newIndex(), ops, uint64(len(data))); err != nil {
			t.Fatalf("%s\n%v", Print(ops), err)
		}
	})
}
