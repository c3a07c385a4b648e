package approx

import (
	"context"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/chains"
	"github.com/kvatlas/kvatlas/shard"
)

// held is which rank is taken to hold what. The Cache's lock guards it.
type held struct {
	// A node has as many blocks as the run that holds most of it. Who holds a child holds all of its
	// parent; of a node without children, a rank may hold the beginning.
	tree   chains.Tree[[]holding]
	runs   chains.Slab[run] // none is the beginning and end of all, by last use
	ranks  chains.Slab[rank]
	slots  map[shard.RankID]uint32 // of ranks that hold something
	blocks int                     // of all
}

// holding is that a rank holds blocks of a node. A node's are by rising slot.
type holding struct{ slot, run uint32 }

// run is the blocks of a node that a rank holds: they were last used together.
type run struct {
	node, slot uint32
	blocks     uint32        // from the node's first on
	all, own   links         // of all runs, and of its rank's
	used       time.Duration // since the Cache's begun: whoever sets the clock ages nothing
}

// links are a run's neighbours in a ring by last use: a run after all that follow it in prompts.
type links struct{ prev, next uint32 }

const none = 0 // no run

type rank struct {
	id     shard.RankID
	ends   uint32 // the run that is the beginning and end of its own
	blocks int
	depth  uint32 // find's
}

func newHeld() held {
	h := held{tree: chains.New[[]holding](), slots: make(map[shard.RankID]uint32)}
	h.runs.Take()
	h.ranks.Take() // nobody's
	return h
}

// oldest returns the run that was used least recently; none without.
func (h *held) oldest() uint32 { return h.runs.At(none).all.next }

// newest returns the run that was used last; none without.
func (h *held) newest() uint32 { return h.runs.At(none).all.prev }

// ends returns the run between a rank's newest and its oldest.
func (h *held) ends(slot uint32) *run { return h.runs.At(h.ranks.At(slot).ends) }

// find is Cache.Find.
func (h *held) find(local []uint64, each func(id shard.RankID, blocks uint32)) {
	at, done := uint32(chains.Root), 0
	var all []holding // of the first block
	for done < len(local) {
		next, n := h.tree.Step(at, local[done:])
		if n == 0 {
			break
		}
		node := h.tree.At(next)
		if done == 0 {
			all = node.Is
		}
		for _, x := range node.Is {
			h.ranks.At(x.slot).depth = uint32(done) + min(h.runs.At(x.run).blocks, uint32(n))
		}
		if done += n; n < len(node.Blocks) {
			break
		}
		at = next
	}
	for _, x := range all {
		each(h.ranks.At(x.slot).id, h.ranks.At(x.slot).depth)
	}
}

// walk has a rank hold a prompt, of which it appends the runs. Where the prompt leaves a node, or ends
// before what the rank holds of it, that is parted: what is before is used now, and what is behind is not.
func (h *held) walk(path []uint32, id shard.RankID, local []uint64) []uint32 {
	slot, ok := h.slots[id]
	if !ok {
		slot = h.ranks.Take()
		ends := h.runs.Take()
		h.runs.At(ends).own = links{ends, ends}
		h.ranks.At(slot).id, h.ranks.At(slot).ends, h.slots[id] = id, ends, slot
	}
	at := uint32(chains.Root)
	for len(local) > 0 {
		next, n := h.tree.Step(at, local)
		if n == 0 {
			next, n = h.tree.Hang(at, local), len(local)
		} else if n < len(h.tree.At(next).Blocks) && (n < len(local) || h.of(next, slot) > n) {
			next = h.part(next, n)
		}
		path = append(path, h.hold(next, slot, uint32(n)))
		at, local = next, local[n:]
	}
	return path
}

// of returns how many blocks of a node a rank holds.
func (h *held) of(node, slot uint32) int {
	all := h.tree.At(node).Is
	if i, ok := slices.BinarySearchFunc(all, slot, bySlot); ok {
		return int(h.runs.At(all[i].run).blocks)
	}
	return 0
}

// hold has a rank hold so many blocks of a node, or as many as it does if they are more.
func (h *held) hold(node, slot, blocks uint32) uint32 {
	all := &h.tree.At(node).Is
	i, ok := slices.BinarySearchFunc(*all, slot, bySlot)
	if !ok {
		*all = slices.Insert(*all, i, holding{slot, h.newRun(run{node: node, slot: slot}, h.newest(), h.ends(slot).own.prev)})
	}
	at := (*all)[i].run
	if r := h.runs.At(at); r.blocks < blocks {
		h.blocks += int(blocks - r.blocks)
		h.ranks.At(slot).blocks += int(blocks - r.blocks)
		r.blocks = blocks
	}
	return at
}

// part makes the first n blocks of a node one of their own and returns it.
func (h *held) part(at uint32, n int) (front uint32) {
	front = h.tree.Split(at, n)
	all := h.tree.At(at).Is
	head, tail := make([]holding, 0, len(all)), all[:0]
	for _, x := range all {
		if r := h.runs.At(x.run); r.blocks <= uint32(n) {
			r.node = front
			head = append(head, x)
			continue
		}
		h.runs.At(x.run).blocks -= uint32(n)
		tail = append(tail, x)
		x.run = h.newRun(run{node: front, slot: x.slot, blocks: uint32(n), used: h.runs.At(x.run).used}, x.run, x.run)
		head = append(head, x)
	}
	h.tree.At(front).Is, h.tree.At(at).Is = head, tail
	return front
}

// take takes blocks off the end of a run that nothing follows.
func (h *held) take(at, n uint32) {
	r := h.runs.At(at)
	slot, node := r.slot, h.tree.At(r.node)
	r.blocks -= n
	h.blocks -= int(n)
	h.ranks.At(slot).blocks -= int(n)
	number, left := r.node, r.blocks
	if left == 0 {
		i, _ := slices.BinarySearchFunc(node.Is, slot, bySlot)
		node.Is = slices.Delete(node.Is, i, i+1)
		h.unlist(at)
		h.runs.Give(at)
	}
	if h.ranks.At(slot).blocks == 0 {
		delete(h.slots, h.ranks.At(slot).id)
		h.runs.Give(h.ranks.At(slot).ends)
		h.ranks.Give(slot)
	}
	for _, x := range node.Is {
		left = max(left, h.runs.At(x.run).blocks)
	}
	switch {
	case h.blocks == 0:
		*h = newHeld() // maps never shrink
	case left == 0:
		h.tree.Unhang(number)
	case int(left) < len(node.Blocks):
		h.tree.Trim(number, int(left))
	}
}

// renew makes a run the one used last.
func (h *held) renew(at uint32, now time.Duration) {
	h.unlist(at)
	r := h.runs.At(at)
	h.list(at, h.newest(), h.ends(r.slot).own.prev)
	r.used = now
}

// newRun puts a run behind others, one of all runs and one of its rank's.
func (h *held) newRun(r run, all, own uint32) uint32 {
	at := h.runs.Take()
	*h.runs.At(at) = r
	h.list(at, all, own)
	return at
}

func (h *held) list(at, all, own uint32) {
	r := h.runs.At(at)
	r.all = links{all, h.runs.At(all).all.next}
	h.runs.At(r.all.prev).all.next, h.runs.At(r.all.next).all.prev = at, at
	r.own = links{own, h.runs.At(own).own.next}
	h.runs.At(r.own.prev).own.next, h.runs.At(r.own.next).own.prev = at, at
}

func (h *held) unlist(at uint32) {
	r := h.runs.At(at)
	h.runs.At(r.all.prev).all.next, h.runs.At(r.all.next).all.prev = r.all.next, r.all.prev
	h.runs.At(r.own.prev).own.next, h.runs.At(r.own.next).own.prev = r.own.next, r.own.prev
}

func bySlot(x holding, slot uint32) int { return int(x.slot) - int(slot) }

// DumpRank returns the events that rebuild what a rank is taken to hold, parents before children.
func (c *Cache) DumpRank(_ context.Context, id shard.RankID) (events []shard.Dumped, _ error) {
	last := map[uint32]uint64{} // the sequence hash of a node's last block
	for _, n := range c.nodesOf(id) {
		ev := event.Event{Kind: event.Stored, DPRank: id.DPRank, Local: n.blocks}
		ev.Parent, ev.HasParent = last[n.parent]
		if ev.HasParent {
			ev.Engine = make([]uint64, 0, len(n.blocks))
			hash := ev.Parent
			for _, local := range n.blocks {
				hash = blockhash.NextSequenceHash(hash, local)
				ev.Engine = append(ev.Engine, hash)
			}
		} else {
			ev.Engine = blockhash.SequenceHashes(nil, n.blocks)
		}
		last[n.node] = ev.Engine[len(ev.Engine)-1]
		copies := make([]uint32, len(n.blocks))
		for i := range copies {
			copies[i] = 1
		}
		events = append(events, shard.Dumped{Event: ev, Copies: copies})
	}
	return events, nil
}

// nodeOf is what a rank holds of a node.
type nodeOf struct {
	node, parent uint32
	blocks       []uint64
}

// nodesOf copies what a rank holds, parents before children. Nothing is hashed under the lock.
func (c *Cache) nodesOf(id shard.RankID) (all []nodeOf) {
	c.mu.Lock()
	defer c.mu.Unlock()
	slot, ok := c.mu.slots[id]
	if !ok {
		return nil
	}
	ends := c.mu.ranks.At(slot).ends
	for at := c.mu.runs.At(ends).own.prev; at != ends; at = c.mu.runs.At(at).own.prev {
		r := c.mu.runs.At(at)
		n := c.mu.tree.At(r.node)
		all = append(all, nodeOf{r.node, n.Parent, slices.Clone(n.Blocks[:r.blocks])})
	}
	return all
}
