package engine

import (
	"bytes"
	"slices"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
)

// toEvent turns the fields into an event, or counts why not, by the first reason. A
// removal is never left out for its block's content, which it does not tell: the index
// counts the removal of a block that it does not have, and nothing else happens.
func (d *Decoder) toEvent(f *fields) {
	d.left(UnknownField, f.unknown)
	if f.kind == 0 {
		d.drop(f)
		d.left(UnknownEvent, 1)
		return
	}
	if f.kind == event.Cleared { // of the rank, on every medium: vLLM's reset_prefix_cache
		d.drop(f)
		d.add(f, event.Event{Kind: event.Cleared, AllTiers: true})
		return
	}
	if !f.hashes && f.aliases.ok {
		d.hashes = f.aliases.r.AppendHashes(d.hashes[:f.engineAt])
		f.hashes = f.aliases.r.Err() == nil
	}
	if !f.hashes {
		d.lose(f)
		return
	}
	n := len(d.hashes) - f.engineAt
	if n == 0 {
		d.groups.of(f, len(d.tokens) > 0) // of a sparse group that kept none of the tokens' blocks
		return
	}
	tier, group, why, ok := d.wanted(f)
	if !ok {
		d.drop(f)
		d.left(why, n)
		return
	}
	if f.kind == event.Removed || group > 0 {
		d.add(f, event.Event{Kind: f.kind, Tier: tier, Group: group})
		return
	}
	d.store(f, tier)
}

// wanted tells the tier and the cache group of an event's blocks, or why they are left out.
func (d *Decoder) wanted(f *fields) (tier event.Tier, group uint8, why Reason, ok bool) {
	if group, ok = d.groups.of(f, len(d.tokens) > 0 || f.bigrams); !ok {
		return 0, 0, OtherGroup, false
	}
	if full, others := f.components(); others || !full {
		d.groups.hybrid = true
		d.groups.untell()
		if !full {
			return 0, 0, OtherGroup, false
		}
	}
	if len(f.locality) > 0 && string(f.locality) != "LOCAL" {
		return event.External, group, Remote, d.cfg.Remote
	}
	if len(f.medium) == 0 {
		return event.Device, group, 0, true
	}
	if tier, ok = event.ParseTier(f.medium); !ok {
		return 0, 0, Medium, false
	}
	return tier, group, 0, true
}

// components tells whether an event is of full attention, and whether of other components
// too (sglang#32514): it is of full attention alone where it names none.
func (f *fields) components() (full, others bool) {
	if !f.parts.ok {
		return true, false
	}
	r := f.parts.r
	n := r.Array()
	for i := 0; i < n && r.Err() == nil; i++ {
		if bytes.EqualFold(r.Str(), []byte("full")) {
			full = true
		} else {
			others = true
		}
	}
	if n == 0 || r.Err() != nil {
		return true, false
	}
	return full, others
}

// store appends a stored event with the local hashes of its blocks: of all of
// them, or of those before the first one that must be left out. What comes after that one
// hangs on it, so would be of unknown parent; chains remembers this for its children.
//
// Chains are remembered by the hashes of all blocks, as any of them may be a parent. In
// a fleet where nothing differs from the usual chain nothing is remembered, and no
// parent looked up.
func (d *Decoder) store(f *fields, tier event.Tier) {
	n := len(d.hashes) - f.engineAt
	stored := n
	if len(d.tokens) > 0 || f.bigrams { // else the blocks are named by hash alone
		st := d.chainOf(f)
		var why Reason
		if stored, why = d.localHashes(f, n, &st); stored < n {
			d.leave(f, stored, why)
		}
		d.salted = d.salted || st.salt != d.chains.usual.salt
		if st != d.chains.usual || !d.chains.empty() {
			for _, h := range d.hashes[f.engineAt:] {
				d.chains.put(h, st)
			}
		}
	}
	if stored > 0 {
		d.add(f, event.Event{Kind: event.Stored, Tier: tier, HasParent: f.hasParent, Parent: f.parent})
	}
}

// chainOf returns the chain that the event's blocks belong to: what it says
// itself, else what its parent handed down.
func (d *Decoder) chainOf(f *fields) chain {
	st := d.chains.usual
	if f.hasParent && !d.chains.empty() {
		st = d.chains.get(f.parent)
	}
	if len(f.lora) == 0 && f.loraID != 0 && st.lora == 0 {
		st.lora = d.named[f.loraID]
	}
	if len(f.lora) > 0 {
		st.lora = d.loras.get(f.lora, seedOfLora)
	}
	if len(f.salt) > 0 {
		st.salt = d.salts.get(f.salt, seedOfSalt)
	}
	return st
}

// localHashes appends the local hashes of the event's n blocks and returns how
// many have one, and why the next one has none. A salt among the first block's
// extra keys goes to st.
func (d *Decoder) localHashes(f *fields, n int, st *chain) (hashed int, why Reason) {
	switch size := d.cfg.BlockSize; {
	case f.blockSize >= 0 && f.blockSize != int64(size):
		d.batch.OtherSize = int(f.blockSize)
		return 0, BlockSize
	case f.loraID != 0 && st.lora == 0:
		return 0, UnnamedLora
	case st.left:
		return 0, ParentLeft
	case len(d.tokens) != n*size && !(d.eagle(f) && len(d.tokens) == n*size+1):
		return 0, Malformed
	}
	keys, beyond := perBlock(&f.extraKeys), perBlock(&f.lookahead)
	if !f.extraKeys.ok {
		keys = perBlock(&f.mmInfos)
	}
	d.locals = slices.Grow(d.locals, n)
	for i := range n {
		d.mm = d.mm[:0]
		if !keys.none() && !d.blockKeys(&keys, f, st, i == 0 && !f.hasParent) {
			return i, ExtraKeys
		}
		block := d.tokens[i*d.cfg.BlockSize : (i+1)*d.cfg.BlockSize]
		if f.lookahead.ok || d.eagle(f) {
			var ok bool
			if block, ok = d.window(f, &beyond, i); !ok {
				return i, Lookahead
			}
		}
		d.locals = append(d.locals, blockhash.LocalHash(block, st.seed(), d.mm))
		d.batch.Eagle = d.batch.Eagle || d.eagle(f)
	}
	return n, 0
}

// eagle tells whether the hashes of the event's blocks cover the token after each.
func (d *Decoder) eagle(f *fields) bool { return d.cfg.Eagle || f.eagle || f.bigrams }

// window returns the tokens that the i-th block's hash covers: its own, and
// with Eagle the one after them. It refuses other tokens beyond the block.
func (d *Decoder) window(f *fields, beyond *blockReader, i int) (tokens []uint32, ok bool) {
	size := d.cfg.BlockSize
	next, more, ok := beyond.lookahead()
	tokens = d.tokens[i*size : (i+1)*size]
	if !d.eagle(f) {
		return tokens, ok && !more
	}
	if !more && len(d.tokens) > (i+1)*size {
		return d.tokens[i*size : (i+1)*size+1], ok
	}
	d.eagles = append(append(d.eagles[:0], tokens...), next)
	return d.eagles, ok && more
}

// leave leaves out the event's blocks from the i-th on. Where the reason lies
// in the blocks' content, their children are to be left out as well: else each
// would look like a block whose parent was lost.
func (d *Decoder) leave(f *fields, i int, why Reason) {
	out := d.hashes[f.engineAt+i:]
	if why != BlockSize {
		for _, h := range out {
			d.chains.put(h, chain{left: true})
		}
	}
	if why == Malformed {
		d.left(why, 1)
	} else {
		d.left(why, len(out))
	}
	d.hashes = d.hashes[:f.engineAt+i]
}
