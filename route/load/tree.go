package load

import "slices"

// tree holds the chains of blocks of the live requests, run-compressed: a node
// is a stretch of blocks that all chains through it share. As a chain always
// starts at its first block, the blocks in use on a slot are closed under
// "parent of", so how much of a prompt is in use there is one depth.
//
// Nodes are numbered, and children are found in one map by parent and first
// hash: hashes need not be unique over the tree, whoever sent them.
type tree struct {
	nodes    []node // nodes[0] is the root
	free     []uint32
	children map[childKey]uint32
	spare    [][]uint64 // arrays of nodes that are no more, for the next ones
	kept     int        // hashes that they have room for
}

// mostKept bounds tree.kept: a megabyte.
const mostKept = 1 << 17

type childKey struct {
	parent uint32
	first  uint64
}

type node struct {
	blocks     []uint64 // hashes; never written once shared
	refs       []ref    // live requests through here, by rising slot
	parent     uint32
	childCount uint32
	childXor   uint32 // all children's numbers; with one child, its number
	ends       uint32 // live requests whose chain ends here
}

type ref struct{ slot, n uint32 }

const root = 0

func newTree() tree { return tree{nodes: make([]node, 1), children: make(map[childKey]uint32)} }

// live returns how many nodes there are besides the root.
func (t *tree) live() int { return len(t.nodes) - 1 - len(t.free) }

// add puts a chain on a slot and returns the node at which it ends, and how
// many of its blocks were not in use on that slot.
func (t *tree) add(slot uint32, chain []uint64) (end uint32, fresh int) {
	at := uint32(root)
	for len(chain) > 0 {
		next, ok := t.children[childKey{at, chain[0]}]
		if !ok {
			next = t.hang(at, t.clone(chain))
			t.nodes[next].refs = []ref{{slot, 1}}
			fresh += len(chain)
			at = next
			break
		}
		n := common(t.nodes[next].blocks, chain)
		if n < len(t.nodes[next].blocks) {
			next = t.split(next, n)
		}
		if t.nodes[next].use(slot) {
			fresh += n
		}
		at, chain = next, chain[n:]
	}
	t.nodes[at].ends++
	return at, fresh
}

// remove takes a chain off a slot, given the node at which it ends, and
// returns how many blocks are no longer in use there.
func (t *tree) remove(slot, end uint32) (gone int) {
	t.nodes[end].ends--
	left := uint32(root) // the lowest node of the path that stays
	for at := end; at != root; {
		n := &t.nodes[at]
		up := n.parent
		if n.leave(slot) {
			gone += len(n.blocks)
		}
		switch {
		case len(n.refs) == 0:
			t.unhang(at)
		case left == root:
			left = at
		}
		at = up
	}
	// Only that node can have become a stretch that nobody ends at or branches
	// off from: it is one run with its child again.
	if n := &t.nodes[left]; left != root && n.ends == 0 && n.childCount == 1 {
		t.merge(left, n.childXor)
	}
	if t.live() == 0 {
		if len(t.nodes) > smallPeak {
			*t = newTree() // a map never shrinks
		} else {
			t.nodes, t.free = t.nodes[:1], t.free[:0]
		}
	}
	return gone
}

// depths writes, for each slot that has leading blocks of the chain in use,
// how many into depth[slot].
func (t *tree) depths(chain []uint64, depth []uint32) {
	at, done := uint32(root), 0
	for done < len(chain) {
		next, ok := t.children[childKey{at, chain[done]}]
		if !ok {
			return
		}
		n := &t.nodes[next]
		m := common(n.blocks, chain[done:])
		done += m
		for _, r := range n.refs {
			depth[r.slot] = uint32(done)
		}
		if m < len(n.blocks) {
			return
		}
		at = next
	}
}

// chain appends the blocks from the first to the end of a node.
func (t *tree) chain(dst []uint64, end uint32) []uint64 {
	if end == root {
		return dst
	}
	dst = t.chain(dst, t.nodes[end].parent)
	return append(dst, t.nodes[end].blocks...)
}

// hang makes a node below parent.
func (t *tree) hang(parent uint32, blocks []uint64) uint32 {
	var at uint32
	if n := len(t.free); n > 0 {
		at, t.free = t.free[n-1], t.free[:n-1]
	} else {
		at = uint32(len(t.nodes))
		t.nodes = append(t.nodes, node{})
	}
	t.nodes[at] = node{blocks: blocks}
	t.link(parent, at)
	return at
}

// link makes a node a child of parent, unlink undoes it.
func (t *tree) link(parent, at uint32) {
	t.children[childKey{parent, t.nodes[at].blocks[0]}] = at
	t.nodes[at].parent = parent
	t.nodes[parent].childCount++
	t.nodes[parent].childXor ^= at
}

func (t *tree) unlink(at uint32) {
	parent := t.nodes[at].parent
	delete(t.children, childKey{parent, t.nodes[at].blocks[0]})
	t.nodes[parent].childCount--
	t.nodes[parent].childXor ^= at
}

// clone returns a copy. An array is of one node: to part a node copies its front.
func (t *tree) clone(blocks []uint64) []uint64 {
	n := len(t.spare) - 1
	if n < 0 || cap(t.spare[n]) < len(blocks) {
		return slices.Clone(blocks)
	}
	b := t.spare[n]
	t.spare[n], t.spare = nil, t.spare[:n]
	t.kept -= cap(b)
	return append(b[:0], blocks...)
}

// unhang ends a node that has no children.
func (t *tree) unhang(at uint32) {
	t.unlink(at)
	if b := t.nodes[at].blocks; t.kept+cap(b) <= mostKept {
		t.spare, t.kept = append(t.spare, b), t.kept+cap(b)
	}
	t.nodes[at] = node{}
	t.free = append(t.free, at)
}

// split cuts a node after its first n blocks and returns the new front part.
// The rest keeps its number, at which requests end. The front is copied and
// the rest keeps the array, so the two hold at most twice what they need.
func (t *tree) split(at uint32, n int) (front uint32) {
	parent := t.nodes[at].parent
	t.unlink(at)
	front = t.hang(parent, t.clone(t.nodes[at].blocks[:n]))
	t.nodes[front].refs = slices.Clone(t.nodes[at].refs)
	t.nodes[at].blocks = t.nodes[at].blocks[n:]
	t.link(front, at)
	return front
}

// merge joins a node and its only child under the child's number.
func (t *tree) merge(at, kid uint32) {
	parent := t.nodes[at].parent
	t.unlink(kid)
	t.nodes[kid].blocks = slices.Concat(t.nodes[at].blocks, t.nodes[kid].blocks)
	t.unhang(at)
	t.link(parent, kid)
}

// use counts one more request of the slot and reports whether it is the first.
func (n *node) use(slot uint32) bool {
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
func (n *node) leave(slot uint32) bool {
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

func (n *node) find(slot uint32) (int, bool) {
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

// common returns how many leading hashes a and b share.
func common(a, b []uint64) int {
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
