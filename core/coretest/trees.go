package coretest

import (
	"math/rand/v2"
	"slices"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// tree is the chains of a history: node 0 is the root.
type tree []struct {
	parent int
	local  uint64
}

func newTree(r *rand.Rand) tree {
	t := make(tree, 1)
	add := func(parent int) int {
		t = append(t, struct {
			parent int
			local  uint64
		}{parent, r.Uint64()})
		return len(t) - 1
	}
	for range 1 + r.IntN(4) {
		at := 0
		if r.IntN(2) == 0 {
			at = r.IntN(len(t))
		}
		for range 1 + r.IntN(120) {
			if at = add(at); r.IntN(25) == 0 {
				at = r.IntN(len(t))
			}
		}
	}
	return t
}

// any returns a node other than the root.
func (t tree) any(r *rand.Rand) int { return 1 + r.IntN(len(t)-1) }

// path returns the nodes from below the root to the node.
func (t tree) path(node int) (nodes []int) {
	for ; node > 0; node = t[node].parent {
		nodes = append(nodes, node)
	}
	slices.Reverse(nodes)
	return nodes
}

// treeNames are the ways in which the holders of a history call the nodes of a tree.
var treeNames = [...]func(h core.Holder, node uint64) uint64{
	func(_ core.Holder, node uint64) uint64 { return node + 100 },
	func(_ core.Holder, node uint64) uint64 { // some two nodes alike
		if node%7 == 0 {
			return node/14 + 1<<40
		}
		return node + 100
	},
	func(h core.Holder, node uint64) uint64 { // each second holder calls some otherwise
		if h%2 == 1 && node%5 == 0 {
			return node + 1<<50
		}
		return node + 100
	},
	func(h core.Holder, node uint64) uint64 { // each third holder all
		if h%3 == 1 {
			return node + 1<<51
		}
		return node + 100
	},
	func(h core.Holder, node uint64) uint64 { // by what others call the neighbour
		if h%2 == 1 {
			return (node + 1) ^ 1 + 100
		}
		return node + 100
	},
}

// trees makes operations on the paths of a few chains that branch: blocks are stored from
// anywhere on, and many are removed by one event, in any order, with pieces that are in chain order
// up and down, others' hashes and unknown ones, now and then all there are.
func trees(r *rand.Rand) func() Op {
	t := newTree(r)
	holders := [...]int{1, 2, 3, 5, 8, 70}[r.IntN(6)]
	name := treeNames[r.IntN(len(treeNames))]
	removals := 1 + r.IntN(4)
	lower, infers, count := r.IntN(3) == 0, r.IntN(4) == 0, r.IntN(3)
	return func() Op {
		op := Op{Holder: core.Holder(r.IntN(holders)), Count: count == 1 || count == 2 && r.IntN(2) == 0}
		ev := &op.Event
		names := func(nodes ...int) {
			for _, n := range nodes {
				ev.Engine = append(ev.Engine, name(op.Holder, uint64(n)))
			}
		}
		if lower && r.IntN(4) == 0 {
			ev.Tier = event.Tier(r.IntN(event.NumTiers))
		}
		switch k := r.IntN(8); {
		case k < removals:
			ev.Kind = event.Removed
			if r.IntN(8) == 0 {
				for _, n := range r.Perm(len(t) - 1) {
					names(n + 1)
				}
				break
			}
			for n := [...]int{5, 40, 100, 400}[r.IntN(4)]; len(ev.Engine) < n; {
				path := t.path(t.any(r))
				path = path[len(path)-min(len(path), 1+r.IntN(20)):]
				switch r.IntN(12) {
				case 0:
					slices.Reverse(path)
					names(path...)
				case 1:
					names(path...)
				case 2:
					ev.Engine = append(ev.Engine, r.Uint64())
				case 3:
					ev.Engine = append(ev.Engine, name(op.Holder+1, uint64(t.any(r))))
				default:
					names(t.any(r))
				}
			}
		case k == 7 && r.IntN(6) == 0:
			ev.Kind, ev.AllTiers = event.Cleared, r.IntN(2) == 0
		case k == 7 && infers: // Infer or StoreFrom
			ev.HasParent, ev.Parent = true, name(op.Holder, uint64(t.any(r)))
			ev.AllTiers = r.IntN(2) == 0
		case k == 7 && r.IntN(3) == 0: // Forget
			names(t.any(r), t.any(r), t.any(r))
		default:
			ev.Kind = event.Stored
			path := t.path(t.any(r))
			from := 0
			if r.IntN(2) == 0 {
				from = r.IntN(len(path))
			}
			if from > 0 {
				ev.HasParent, ev.Parent = true, name(op.Holder, uint64(path[from-1]))
			}
			names(path[from:]...)
			for _, n := range path[from:] {
				ev.Local = append(ev.Local, t[n].local)
			}
		}
		return op
	}
}
