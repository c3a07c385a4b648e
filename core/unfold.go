package core

import "github.com/kvatlas/kvatlas/blockhash"

// Unfolder is an Index that also knows prompts by their sequence hashes. The
// method runs beside the writer, as Find does.
type Unfolder interface {
	// Unfold appends to dst the local hashes of the longest chain of the index
	// that has the sequence hashes seq, from block 0 on: at most len(seq), and
	// as many as any holder's prefix of such a prompt can have.
	//
	// A sequence hash does not tell its local hash, so all children are tried
	// where a chain divides: the time is that of a lookup, and a hash for each
	// child of the prompt's blocks.
	Unfold(dst, seq []uint64) []uint64
}

var _ Unfolder = (*Radix)(nil)

// Unfold implements Unfolder.
func (x *Radix) Unfold(dst, seq []uint64) []uint64 {
	if len(seq) == 0 {
		return dst
	}
	begin := len(dst)
	r := x.root.body.Load().children.Load().find(0, seq[0]) // the first sequence hash is the first local one
	for r != nil && len(dst)-begin < len(seq) {
		b, base := r.body.Load(), len(dst)-begin
		n := uint32(0)
		for end := b.len(); n < end && base+int(n) < len(seq); n++ {
			if local := b.data.at(n); after(seq, base+int(n), local) {
				dst = append(dst, local)
				continue
			}
			break
		}
		if base+int(n) == len(seq) {
			break
		}
		var next *run
		b.children.Load().each(func(c *run) bool {
			if c.off == n && after(seq, base+int(n), c.first) {
				next = c
			}
			return next == nil
		})
		if next != nil && r.body.Load() != b {
			dst = dst[:begin+base] // the child may hang below other content than b's
			continue
		}
		r = next
	}
	return dst
}

// after reports whether a block with the local hash, at position i, has the
// sequence hash seq[i].
func after(seq []uint64, i int, local uint64) bool {
	if i == 0 {
		return seq[0] == local
	}
	return seq[i] == blockhash.NextSequenceHash(seq[i-1], local)
}
