package coretest

import (
	"math/rand/v2"
	"slices"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// fleet makes the operations of engines that serve conversations: requests
// that share a system prompt, extend an earlier turn or leave it just before
// its tail; decode appends one block at a time; caches evict from the tails of
// the chains that were used longest ago, sometimes to the host tier first.
// Some engines name blocks by a common scheme, some by one of their own.
// turn is the usual number of blocks in a prompt.
func fleet(engines, turn int) func(r *rand.Rand) func() Op {
	return func(r *rand.Rand) func() Op {
		f := &fleetState{r: r, turn: turn, capacity: turn * (4 + r.IntN(12))}
		f.system = f.blocks(nil, 1+r.IntN(1+turn/3))
		for i := range engines {
			own := uint64(0)
			if r.IntN(3) == 0 {
				own = r.Uint64()
			}
			f.engines = append(f.engines, &mockEngine{
				holder: core.Holder(i * (1 + r.IntN(9))), salt: own, count: r.IntN(2) == 0,
				held: map[uint64]*mockBlock{},
			})
		}
		return f.next
	}
}

type fleetState struct {
	r             *rand.Rand
	turn          int
	capacity      int
	system        []uint64
	conversations [][]uint64
	engines       []*mockEngine
	queue         []Op // already decided, not yet returned
}

type mockEngine struct {
	holder core.Holder
	salt   uint64
	count  bool
	held   map[uint64]*mockBlock // by sequence hash
	chains [][]uint64            // sequence hashes, least recently used first
}

type mockBlock struct {
	children int
	parent   uint64
	host     bool
}

func (e *mockEngine) name(seq uint64) uint64 { return seq ^ e.salt }

func (e *mockEngine) names(seqs []uint64) []uint64 {
	hashes := make([]uint64, len(seqs))
	for i, s := range seqs {
		hashes[i] = e.name(s)
	}
	return hashes
}

// blocks appends n new blocks to a chain of local hashes.
func (f *fleetState) blocks(chain []uint64, n int) []uint64 {
	chain = slices.Clone(chain)
	for range n {
		chain = append(chain, f.r.Uint64())
	}
	return chain
}

func (f *fleetState) next() Op {
	for len(f.queue) == 0 {
		f.act()
	}
	op := f.queue[0]
	f.queue = f.queue[1:]
	return op
}

func (f *fleetState) emit(e *mockEngine, ev event.Event) {
	f.queue = append(f.queue, Op{Holder: e.holder, Count: e.count, Event: ev})
}

// act lets one engine do one thing.
func (f *fleetState) act() {
	e := f.engines[f.r.IntN(len(f.engines))]
	switch k := f.r.IntN(100); {
	case k < 60:
		f.serve(e, f.prompt())
	case k < 80 && len(e.chains) > 0: // decode
		i := f.r.IntN(len(e.chains))
		c := e.chains[i]
		l := f.r.Uint64()
		seq := blockhash.NextSequenceHash(c[len(c)-1], l)
		e.chains[i] = append(slices.Clone(c), seq)
		e.held[c[len(c)-1]].children++
		e.held[seq] = &mockBlock{parent: c[len(c)-1]}
		f.emit(e, event.Event{
			Kind: event.Stored, HasParent: true, Parent: e.name(c[len(c)-1]),
			Engine: []uint64{e.name(seq)}, Local: []uint64{l},
		})
	case k < 90 && len(e.chains) > 0:
		f.evict(e, 1+f.r.IntN(f.turn))
	case k < 95 && len(e.chains) > 0: // a hole, and often its refill
		c := e.chains[f.r.IntN(len(e.chains))]
		at := f.r.IntN(len(c))
		hole := e.names(c[at:min(len(c), at+1+f.r.IntN(3))])
		f.emit(e, event.Event{Kind: event.Removed, Engine: hole})
		if f.r.IntN(4) > 0 {
			f.emit(e, event.Event{Kind: event.Stored, Engine: hole})
		}
	case k < 96: // copies come and go
		if len(e.chains) > 0 {
			c := e.names(e.chains[f.r.IntN(len(e.chains))])
			f.emit(e, event.Event{Kind: event.Stored, Engine: c})
			f.emit(e, event.Event{Kind: event.Removed, Engine: c[len(c)/2:]})
			if !e.count {
				f.emit(e, event.Event{Kind: event.Stored, Engine: c[len(c)/2:]})
			}
		}
	case k < 97:
		f.emit(e, event.Event{Kind: event.Removed, Engine: []uint64{f.r.Uint64()}})
		f.emit(e, event.Event{
			Kind: event.Stored, HasParent: true, Parent: f.r.Uint64(),
			Engine: []uint64{1, 2, 3}, Local: []uint64{1, 2, 3},
		})
	case k < 98 && f.r.IntN(4) == 0: // a restart
		e.held, e.chains = map[uint64]*mockBlock{}, nil
		f.emit(e, event.Event{Kind: event.Cleared, AllTiers: true})
	case k < 99 && f.r.IntN(4) == 0:
		f.emit(e, event.Event{Kind: event.Cleared, Tier: event.HostPinned})
		for _, b := range e.held {
			b.host = false
		}
	}
}

// prompt returns a conversation's next turn, or a first one.
func (f *fleetState) prompt() []uint64 {
	n := len(f.conversations)
	if n == 0 || f.r.IntN(4) == 0 {
		first := f.system
		if f.r.IntN(10) == 0 {
			first = nil
		}
		f.conversations = append(f.conversations, f.blocks(first, 1+f.r.IntN(f.turn)))
		return f.conversations[n]
	}
	i := n - 1 - f.r.IntN(min(n, 16))
	c := f.conversations[i]
	switch f.r.IntN(4) {
	case 0: // the same again, on any engine
		return c
	case 1: // leaves the last turn just before its tail
		c = c[:len(c)-min(len(c)-1, f.r.IntN(3))]
	}
	if len(c) > 4*f.turn {
		c = c[:f.turn]
	}
	f.conversations[i] = f.blocks(c, 1+f.r.IntN(1+f.turn/4))
	return f.conversations[i]
}

// serve stores what the engine does not hold of the prompt.
func (f *fleetState) serve(e *mockEngine, prompt []uint64) {
	seqs := blockhash.SequenceHashes(nil, prompt)
	have := 0
	for have < len(seqs) && e.held[seqs[have]] != nil {
		have++
	}
	if f.r.IntN(10) == 0 {
		have = max(0, have-2) // stores known blocks again
		if e.count {
			have = 0
		}
	}
	if have < len(seqs) {
		ev := event.Event{Kind: event.Stored, Engine: e.names(seqs[have:]), Local: prompt[have:]}
		if have > 0 {
			ev.HasParent, ev.Parent = true, e.name(seqs[have-1])
		}
		f.emit(e, ev)
	}
	for i, s := range seqs {
		if e.held[s] == nil {
			e.held[s] = &mockBlock{}
			if i > 0 {
				e.held[s].parent = seqs[i-1]
				e.held[seqs[i-1]].children++
			}
		}
	}
	e.chains = append(slices.DeleteFunc(e.chains, func(c []uint64) bool {
		return c[len(c)-1] == seqs[len(seqs)-1]
	}), seqs)
	if len(e.held) > f.capacity {
		f.evict(e, len(e.held)-f.capacity+f.r.IntN(1+f.turn/2))
	}
}

// evict takes n blocks from the tails of the oldest chains.
func (f *fleetState) evict(e *mockEngine, n int) {
	var gone []uint64
	for len(e.chains) > 0 && len(gone) < n {
		c := e.chains[0]
		for len(c) > 0 && len(gone) < n {
			b := e.held[c[len(c)-1]]
			if b != nil && b.children > 0 {
				c = nil // another chain goes on from here and will take the rest
				break
			}
			if b != nil {
				gone = append(gone, c[len(c)-1])
				delete(e.held, c[len(c)-1])
				if p := e.held[b.parent]; p != nil && len(c) > 1 {
					p.children--
				}
			}
			c = c[:len(c)-1]
		}
		if len(c) > 0 {
			e.chains[0] = c
		} else {
			e.chains = e.chains[1:]
		}
	}
	if len(gone) == 0 {
		return
	}
	hashes := e.names(gone)
	if f.r.IntN(3) == 0 {
		f.emit(e, event.Event{Kind: event.Stored, Tier: event.Tier(1 + f.r.IntN(event.NumTiers-1)), Engine: hashes})
	}
	f.emit(e, event.Event{Kind: event.Removed, Engine: hashes})
	// Chains that ended in what is gone end earlier now.
	e.chains = slices.DeleteFunc(e.chains, func(c []uint64) bool { return e.held[c[len(c)-1]] == nil })
}
