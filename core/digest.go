package core

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

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
