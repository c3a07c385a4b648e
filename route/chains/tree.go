package chains

import (
	"math/bits"
	"slices"
)

// Root is the number of the root, which has no blocks.
const Root = 0

// Tree holds chains. Make it with New.
type Tree[P any] struct {
	Nodes    Slab[Node[P]] // by number; of those that are unhung, zero
	children map[childKey]uint32
	spare    [bits.UintSize][][]uint64 // arrays of nodes that are no more, those of at least 2^i hashes at i
	kept     int                       // hashes that they have room for
}

// mostKept bounds Tree.kept: a megabyte.
const mostKept = 1 << 17

type childKey struct {
	parent uint32
	first  uint64
}

// Node is a stretch of blocks that all chains through it share.
type Node[P any] struct {
	Blocks   []uint64 // hashes; the tree's to write
	Is       P        // its user's
	Parent   uint32
	children uint32
	xor      uint32 // all children's numbers; with one child, its number
}

// New returns an empty tree.
func New[P any]() Tree[P] {
	t := Tree[P]{children: make(map[childKey]uint32)}
	t.Nodes.Take()
	return t
}

// At returns the node of a number.
func (t *Tree[P]) At(at uint32) *Node[P] { return t.Nodes.At(at) }

// Live returns how many nodes there are besides the root.
func (t *Tree[P]) Live() int { return t.Nodes.Live() - 1 }

// Single reports whether a node has exactly one child.
func (t *Tree[P]) Single(at uint32) bool { return t.At(at).children == 1 }

// Step returns the child of a node with which a chain goes on, and how many blocks they share; 0
// if there is none.
func (t *Tree[P]) Step(at uint32, chain []uint64) (next uint32, n int) {
	next, ok := t.children[childKey{at, chain[0]}]
	if !ok {
		return 0, 0
	}
	return next, Common(t.At(next).Blocks, chain)
}

// Chain appends the blocks from the first to the end of a node.
func (t *Tree[P]) Chain(dst []uint64, end uint32) []uint64 {
	n := len(dst)
	for at := end; at != Root; at = t.At(at).Parent {
		n += len(t.At(at).Blocks)
	}
	dst = slices.Grow(dst, n-len(dst))[:n]
	for at := end; at != Root; at = t.At(at).Parent {
		n -= copy(dst[n-len(t.At(at).Blocks):], t.At(at).Blocks)
	}
	return dst
}

// Hang makes a node of these blocks below parent, which must have no child that begins so.
func (t *Tree[P]) Hang(parent uint32, blocks []uint64) uint32 {
	at := t.Nodes.Take()
	t.At(at).Blocks = t.clone(blocks)
	t.link(parent, at)
	return at
}

// Unhang ends a node that has no children.
func (t *Tree[P]) Unhang(at uint32) {
	t.unlink(at)
	t.keep(t.At(at).Blocks)
	t.Nodes.Give(at)
}

// Split cuts a node after its first n blocks and returns the new front part, which is nothing to its
// user yet. The rest keeps its number. It is copied, and the front keeps the array if it needs a quarter
// of it: a few blocks that kept it would hold what who parts one chain at every block has sent in all.
func (t *Tree[P]) Split(at uint32, n int) (front uint32) {
	t.unlink(at)
	front = t.Nodes.Take()
	rest, head := t.At(at), t.At(front)
	head.Blocks, rest.Blocks = rest.Blocks, t.clone(rest.Blocks[n:])
	t.Trim(front, n)
	t.link(rest.Parent, front)
	t.link(front, at)
	return front
}

// Merge joins a node and its only child under the child's number, and as what that is.
func (t *Tree[P]) Merge(at uint32) {
	kid, parent := t.At(at).xor, t.At(at).Parent
	t.unlink(kid)
	front, back := t.At(at).Blocks, t.At(kid).Blocks
	both := append(append(t.room(len(front)+len(back)), front...), back...)
	t.keep(back)
	t.At(kid).Blocks = both
	t.Unhang(at)
	t.link(parent, kid)
}

// Trim leaves the first n blocks of a node that has no children: one at least.
func (t *Tree[P]) Trim(at uint32, n int) {
	b := t.At(at).Blocks
	if t.At(at).Blocks = b[:n]; cap(b) > 4*n {
		t.At(at).Blocks = t.clone(b[:n])
		t.keep(b)
	}
}

// link makes a node a child of parent, unlink undoes it.
func (t *Tree[P]) link(parent, at uint32) {
	t.children[childKey{parent, t.At(at).Blocks[0]}] = at
	t.At(at).Parent = parent
	t.At(parent).children++
	t.At(parent).xor ^= at
}

func (t *Tree[P]) unlink(at uint32) {
	parent := t.At(at).Parent
	delete(t.children, childKey{parent, t.At(at).Blocks[0]})
	t.At(parent).children--
	t.At(parent).xor ^= at
}

// clone returns a copy. An array is of one node.
func (t *Tree[P]) clone(blocks []uint64) []uint64 { return append(t.room(len(blocks)), blocks...) }

// room returns an empty array for n hashes, and at most twice as many.
func (t *Tree[P]) room(n int) []uint64 {
	size := bits.Len(uint(n - 1))
	kept := t.spare[size]
	if len(kept) == 0 {
		return make([]uint64, 0, 1<<size)
	}
	b := kept[len(kept)-1]
	kept[len(kept)-1], t.spare[size] = nil, kept[:len(kept)-1]
	t.kept -= cap(b)
	return b[:0]
}

// keep takes an array back.
func (t *Tree[P]) keep(b []uint64) {
	if t.kept+cap(b) <= mostKept {
		size := bits.Len(uint(cap(b))) - 1
		t.spare[size], t.kept = append(t.spare[size], b), t.kept+cap(b)
	}
}

// Common returns how many leading hashes a and b share.
func Common(a, b []uint64) int {
	const wide = 32 // compared as one array, which is a memory comparison
	n := min(len(a), len(b))
	i := 0
	for i+wide <= n && *(*[wide]uint64)(a[i:]) == *(*[wide]uint64)(b[i:]) {
		i += wide
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}
