package enginetest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// BlockSize is that of every history.
const BlockSize = 64

// Batch is one batch that an engine publishes.
type Batch struct {
	Line   []byte        // of a publisher's script, with a line feed
	Events []event.Event // what it means
}

// History makes up what one rank of an engine says. Engines draw from the same
// prompts, so that a fleet of them shares prefixes.
type History struct {
	Batches []Batch // so far

	release Release
	rank    uint32
	rnd     *rand.Rand
	blocks  map[uint64]*block // held ones, by hash
	order   []*block          // the same, to draw from
}

// block is one that the engine holds.
type block struct {
	hash   uint64
	parent *block // even if it is no longer held
	tokens []uint32
	local  uint64
	copies [2]int // on the device, in host memory
	chain  chain
	at     int // in History.order
}

// chain is what a block's hash covers besides tokens.
type chain struct{ lora, salt string }

// NewHistory begins a history.
func NewHistory(r Release, rank uint32, seed uint64) *History {
	return &History{release: r, rank: rank, rnd: rand.New(rand.NewPCG(seed, uint64(rank))), blocks: map[uint64]*block{}}
}

// Apply gives everything so far to an index.
func (h *History) Apply(x core.Index, holder core.Holder) {
	for i := range h.Batches {
		for j := range h.Batches[i].Events {
			Apply(x, holder, &h.Batches[i].Events[j])
		}
	}
}

// Apply gives one event of an engine to an index.
func Apply(x core.Index, holder core.Holder, ev *event.Event) core.Outcome {
	switch ev.Kind {
	case event.Stored:
		return x.Store(holder, ev, true)
	case event.Removed:
		return x.Remove(holder, ev, true)
	}
	return x.Clear(holder, ev.Tier, ev.AllTiers)
}

// Go makes up n more batches and returns them.
func (h *History) Go(n int) ([]Batch, error) {
	for range n {
		var b Batch
		var script []any
		for range 1 + h.rnd.IntN(4) {
			said, ev := h.event()
			script = append(script, said)
			if ev != nil {
				ev.DPRank = h.rank
				b.Events = append(b.Events, *ev)
			}
		}
		line, err := json.Marshal(script)
		if err != nil {
			return nil, fmt.Errorf("script: %w", err)
		}
		b.Line = append(line, '\n')
		h.Batches = append(h.Batches, b)
	}
	return h.Batches[len(h.Batches)-n:], nil
}

// event makes up one event: as a script says it, and what it means, if it is to
// be indexed.
func (h *History) event() (said any, ev *event.Event) {
	switch x := h.rnd.IntN(1000); {
	case x == 0:
		clear(h.blocks)
		h.order = nil
		return "cleared", &event.Event{Kind: event.Cleared, AllTiers: true}
	case x < 450 && len(h.order) > 800:
		return h.remove()
	case x < 520 && h.release.Host != "" && len(h.order) > 0:
		// A copy of one block in host memory.
		b := h.order[h.rnd.IntN(len(h.order))]
		if b.parent == nil || h.blocks[b.parent.hash] != nil {
			return h.store([]*block{b}, event.HostPinned)
		}
	case x < 540 && h.release.Groups:
		hash := h.rnd.Uint64()
		return map[string]any{"stored": map[string]any{
			"hashes": []any{h.hash(hash)}, "parent": nil, "tokens": h.rnd.Perm(BlockSize), "block_size": BlockSize, "group": 1,
		}}, nil
	}
	var parent *block
	if len(h.order) > 0 && h.rnd.IntN(10) < 7 {
		parent = h.order[h.rnd.IntN(len(h.order))]
	}
	var c chain
	choices := 4
	if parent != nil {
		c = parent.chain
	} else {
		choices = 40
		if h.release.Lora {
			c = [...]chain{{}, {}, {lora: "sql"}, {salt: "tenant-a"}, {lora: "sql", salt: "tenant-b"}}[h.rnd.IntN(5)]
		}
	}
	var run []*block
	for range 1 + h.rnd.IntN(6) {
		parent = h.child(parent, c, h.rnd.IntN(choices))
		run = append(run, parent)
	}
	return h.store(run, event.Device)
}

// child returns the block of one of the ways in which prompts go on.
func (h *History) child(parent *block, c chain, choice int) *block {
	key := binary.LittleEndian.AppendUint64([]byte(c.lora+"/"+c.salt), uint64(choice))
	if parent != nil {
		key = binary.LittleEndian.AppendUint64(key, parent.hash)
	}
	hash := xxh3.Hash(key)
	if b := h.blocks[hash]; b != nil {
		return b
	}
	b := &block{hash: hash, parent: parent, chain: c}
	for i := range BlockSize {
		b.tokens = append(b.tokens, uint32(xxh3.HashSeed(key, uint64(i))%150_000))
	}
	b.local = blockhash.LocalHash(b.tokens, blockhash.Seed(c.lora, c.salt), nil)
	return b
}

// store stores a run of blocks, each the parent of the next.
func (h *History) store(run []*block, tier event.Tier) (any, *event.Event) {
	first := run[0]
	ev := &event.Event{Kind: event.Stored, Tier: tier}
	said := map[string]any{"parent": nil, "block_size": BlockSize}
	if first.parent != nil {
		said["parent"] = h.hash(first.parent.hash)
		ev.HasParent, ev.Parent = true, first.parent.hash
	} else if first.chain.salt != "" {
		said["salt"] = first.chain.salt // engines name it at the first block only
	}
	if first.chain.lora != "" {
		said["lora"] = first.chain.lora
	}
	if h.release.Session {
		said["session"] = fmt.Sprint("s-", h.rnd.IntN(100))
	}
	if tier == event.HostPinned {
		said["medium"] = h.release.Host
	}
	var hashes []any
	var tokens []uint32
	for _, b := range run {
		hashes, tokens = append(hashes, h.hash(b.hash)), append(tokens, b.tokens...)
		ev.Engine, ev.Local = append(ev.Engine, b.hash), append(ev.Local, b.local)
		b.copies[tier]++
		if h.blocks[b.hash] == nil {
			h.blocks[b.hash], b.at = b, len(h.order)
			h.order = append(h.order, b)
		}
	}
	said["hashes"], said["tokens"] = hashes, tokens
	return map[string]any{"stored": said}, ev
}

// remove takes one copy of a few blocks away, mostly of such as nothing was
// stored below lately.
func (h *History) remove() (any, *event.Event) {
	tier := event.Device
	if h.release.Host != "" && h.rnd.IntN(8) == 0 {
		tier = event.HostPinned
	}
	ev := &event.Event{Kind: event.Removed, Tier: tier}
	var hashes []any
	for range 1 + h.rnd.IntN(12) {
		if len(h.order) == 0 {
			break
		}
		b := h.order[h.rnd.IntN(len(h.order))]
		hashes = append(hashes, h.hash(b.hash))
		ev.Engine = append(ev.Engine, b.hash)
		if b.copies[tier] == 0 {
			continue // unknown there, which engines say too
		}
		if b.copies[tier]--; b.copies == [2]int{} {
			last := h.order[len(h.order)-1]
			h.order[b.at], last.at = last, b.at
			h.order = h.order[:len(h.order)-1]
			delete(h.blocks, b.hash)
		}
	}
	said := map[string]any{"hashes": hashes}
	if tier == event.HostPinned {
		said["medium"] = h.release.Host
	}
	return map[string]any{"removed": said}, ev
}

// hash is how a script gives a hash.
func (h *History) hash(v uint64) any {
	switch {
	case h.release.Signed:
		return int64(v)
	case v%16 == 0: // the same for the same block
		return map[string]any{"bytes": fmt.Sprintf("%048x%016x", ^v, v)}
	}
	return v
}
