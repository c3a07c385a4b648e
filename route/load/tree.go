package load

import (
	"slices"

	"github.com/kvatlas/kvatlas/route/chains"
)

// tree holds the chains of blocks of the live requests. As a chain always
// starts at its first block, the blocks in use on a slot are closed under
// "parent of", so how much of a prompt is in use there is one depth.
type tree struct{ chains.Tree[usage] }

// usage is who uses a node.
type usage struct {
	refs []ref  // live requests through here, by rising slot
	ends uint32 // live requests whose chain ends here
}

type ref struct{ slot, n uint32 }

func newTree() tree { return tree{chains.New[usage]()} }

// add puts a chain on a slot and returns the node at which it ends, and how
// many of its blocks were not in use on that slot.
func (t *tree) add(slot uint32, chain []uint64) (end uint32, fresh int) {
	at := uint32(chains.Root)
	for len(chain) > 0 {
		next, n := t.Step(at, chain)
		if n == 0 {
			next, n = t.Hang(at, chain), len(chain)
		} else if n < len(t.At(next).Blocks) {
			front := t.Split(next, n)
			t.At(front).Is.refs = slices.Clone(t.At(next).Is.refs)
			next = front
		}
		if t.At(next).Is.use(slot) {
			fresh += n
		}
		at, chain = next, chain[n:]
	}
	t.At(at).Is.ends++
	return at, fresh
}

// remove takes a chain off a slot, given the node at which it ends, and
// returns how many blocks are no longer in use there.
func (t *tree) remove(slot, end uint32) (gone int) {
	t.At(end).Is.ends--
	left := uint32(chains.Root) // the lowest node of the path that stays
	for at := end; at != chains.Root; {
		n := t.At(at)
		up := n.Parent
		if n.Is.leave(slot) {
			gone += len(n.Blocks)
		}
		switch {
		case len(n.Is.refs) == 0:
			t.Unhang(at)
		case left == chains.Root:
			left = at
		}
		at = up
	}
	// Only that node can have become a stretch that nobody ends at or branches
	// off from: it is one run with its child again.
	if left != chains.Root && t.At(left).Is.ends == 0 && t.Single(left) {
		t.Merge(left)
	}
	if t.Live() == 0 && t.Nodes.Len() > smallPeak {
		*t = newTree() // a map never shrinks
	}
	return gone
}

// depths writes, for each slot that has leading blocks of the chain in use,
// how many into depth[slot].
func (t *tree) depths(chain []uint64, depth []uint32) {
	at, done := uint32(chains.Root), 0
	for done < len(chain) {
		next, n := t.Step(at, chain[done:])
		if n == 0 {
			return
		}
		done += n
		for _, r := range t.At(next).Is.refs {
			depth[r.slot] = uint32(done)
		}
		if n < len(t.At(next).Blocks) {
			return
		}
		at = next
	}
}

// use counts one more request of the slot and reports whether it is the first.
func (n *usage) use(slot uint32) bool {
	i, found := n.find(slot)
	if found {
		n.refs[i].n++
		return false
	}
	n.refs = slices.Insert(n.refs, i, ref{slot, 1})
	return true
}

// leave counts one request of the slot less and reports whether it was the
// last.
func (n *usage) leave(slot uint32) bool {
	i, found := n.find(slot)
	if !found {
		return false
	}
	if n.refs[i].n--; n.refs[i].n > 0 {
		return false
	}
	n.refs = slices.Delete(n.refs, i, i+1)
	return true
}

func (n *usage) find(slot uint32) (int, bool) {
	lo, hi := 0, len(n.refs)
	for lo < hi {
		if mid := (lo + hi) / 2; n.refs[mid].slot < slot {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(n.refs) && n.refs[lo].slot == slot
}
