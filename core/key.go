package core

import "math/bits"

// Key is what the tables of an index hash with. An index answers, counts and
// dumps the same under every key; but who knows the key can choose hashes that
// crowd one place of a table, and whoever sends events chooses their hashes. So a
// process takes a random one. The zero Key is for tests: a fixed one.
type Key [2]uint64

// hasher is a Key as the tables use it.
type hasher struct{ a, b, odd uint64 }

func (k Key) hasher() hasher {
	// Constants so that the zero Key's a and b differ: else h and h<<32 would be
	// alike.
	return hasher{k[0] ^ 0x9E3779B97F4A7C15, k[1] ^ 0xD6E8FEB86659FD93, bits.RotateLeft64(k[0], 32) ^ k[1] | 1}
}

// mix spreads a hash that somebody else chose: some engines' are small integers,
// some could be chosen to be alike. The first product takes the hash twice, so
// that no difference of two hashes is known to survive it; it is the shape with
// which the Go runtime hashes words where it has no AES (runtime/hash64.go).
func (k *hasher) mix(h uint64) uint64 {
	hi, lo := bits.Mul64(h^k.a, h^k.b)
	hi, lo = bits.Mul64(hi^lo, 0xD6E8FEB86659FD93)
	return hi ^ lo
}

// mixAt is mix for a hash at an offset.
func (k *hasher) mixAt(off uint32, h uint64) uint64 { return k.mix(h ^ uint64(off)*k.odd) }
