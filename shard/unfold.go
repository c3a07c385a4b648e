package shard

import "github.com/kvatlas/kvatlas/core"

// Unfold appends to dst the local hashes of the longest chain of the space
// that has the sequence hashes seq; see [core.Unfolder]. It takes no lock and
// touches one shard. An index that is no Unfolder knows no chain.
func (s *Space) Unfold(dst, seq []uint64) []uint64 {
	if len(seq) == 0 {
		return dst
	}
	if u, ok := s.shards[s.shardOf(seq[0])].index.(core.Unfolder); ok {
		dst = u.Unfold(dst, seq)
	}
	return dst
}
