package core

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
)

// DigestTerm returns what one held (holder, tier, hash) adds to the digest of
// an index: XXH3-64, seed 0, of these fields, little-endian, in this order.
//
//	space    u64  what the caller names the space by
//	worker   u64
//	dpRank   u32
//	tier     u32
//	group    u32  cache group; the index holds group 0 only
//	engine   u64  the hash
//	seq      u64  sequence hash of its position ([NextSequenceHash])
//	copies   u32  never 0
//
// A digest is the wrapping sum of its terms, so it depends neither on order
// nor on how the blocks are divided over shards.
func DigestTerm(space, worker uint64, dpRank uint32, tier event.Tier, group uint32, engine, seq uint64, copies uint32) uint64 {
	var b [48]byte
	binary.LittleEndian.PutUint64(b[0:], space)
	binary.LittleEndian.PutUint64(b[8:], worker)
	binary.LittleEndian.PutUint32(b[16:], dpRank)
	binary.LittleEndian.PutUint32(b[20:], uint32(tier))
	binary.LittleEndian.PutUint32(b[24:], group)
	binary.LittleEndian.PutUint64(b[28:], engine)
	binary.LittleEndian.PutUint64(b[36:], seq)
	binary.LittleEndian.PutUint32(b[44:], copies)
	return xxh3.Hash(b[:])
}

// Digest implements Index.
func (x *Radix) Digest(space uint64, identity func(Holder) (worker uint64, dpRank uint32)) uint64 {
	var sum uint64
	var seq []uint64
	type visit struct {
		run   *run
		above uint64 // sequence hash of the block before
	}
	var left []visit
	x.root.body.Load().children.Load().each(func(c *run) bool {
		left = append(left, visit{run: c})
		return true
	})
	for len(left) > 0 {
		v := left[len(left)-1]
		left = left[:len(left)-1]
		r := v.run
		seq = r.sequence(v.above, seq)
		r.body.Load().children.Load().each(func(c *run) bool {
			left = append(left, visit{c, seq[c.off-1]})
			return true
		})
		r.body.Load().eachHeldLen(0, func(h Holder, held uint32) bool {
			if !x.Empty(h) && x.exceptionOf(r, h) == nil {
				worker, rank := identity(h)
				for p := uint32(0); p < held; p++ {
					sum += DigestTerm(space, worker, rank, event.Device, 0, x.arena.at(r.block(p)), seq[p], 1)
				}
			}
			return true
		})
		for _, ex := range r.exceptions {
			if x.Empty(ex.holder) {
				continue
			}
			worker, rank := identity(ex.holder)
			for t := range event.NumTiers {
				x.eachHeld(ex, t, func(pos uint32, hash uint64, copies uint32) {
					sum += DigestTerm(space, worker, rank, event.Tier(t), 0, hash, seq[pos], copies)
				})
			}
		}
	}
	return sum
}

// sequence returns the sequence hashes of r's blocks in dst, given that of the
// block before, if there is one.
func (r *run) sequence(q uint64, dst []uint64) []uint64 {
	b := r.body.Load()
	dst = b.data.appendTo(dst[:0], 0, b.len())
	for i, l := range dst {
		if i > 0 || r.parent.parent != nil {
			l = blockhash.NextSequenceHash(q, l)
		}
		q, dst[i] = l, l
	}
	return dst
}

// eachHeld calls f for every hash of an exception that has copies on the tier.
func (x *Radix) eachHeld(ex *exception, tier int, f func(pos uint32, hash uint64, copies uint32)) {
	for i := range ex.layers {
		at := spot{layer: uint32(i)}
		ex.layers[i].held[tier].each(func(lo, hi uint32) {
			for p := lo; p < hi; p++ {
				f(p, x.hashAtSpot(ex, at, p), ex.copiesOf(at, tier, p))
			}
		})
	}
	if ex.pile == nil {
		return
	}
	ex.pile.held[tier].each(func(lo, hi uint32) {
		for p := lo; p < hi; p++ {
			ex.pile.at(p, func(b uint32) bool {
				if n := ex.copiesOf(spot{piled, b}, tier, p); n > 0 {
					f(p, x.arena.at(b), n)
				}
				return true
			})
		}
	})
}
