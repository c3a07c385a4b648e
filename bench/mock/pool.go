package mock

import "github.com/kvatlas/kvatlas/event"

// pool is a lower tier: copies of blocks that the device has evicted, of which
// the least recently used leaves when there are too many. Only names are kept,
// as there is no content.
type pool struct {
	tier  event.Tier
	size  int
	slots map[uint64]int32 // by name
	name  []uint64         // by slot; slot 0 is the list's sentinel
	prev  []int32          // LRU list: next victim first
	next  []int32

	// What is not yet told: the names put in or evicted since the last flush, in
	// order, and whether each was there before.
	changed []uint64
	was     map[uint64]bool
	told    []uint64 // scratch
}

// Shared is external storage that several engines read from, each of which puts what it has
// computed there; the least recently used leaves, and whoever put in what it makes room for
// says so. Its engines name content alike (Config.HashSeed), and are called one after the other.
type Shared struct{ pool *pool }

// NewShared makes storage for so many blocks.
func NewShared(blocks int) *Shared { return &Shared{newPool(event.External, blocks)} }

func newPool(tier event.Tier, size int) *pool {
	return &pool{
		tier: tier, size: size, slots: make(map[uint64]int32),
		name: make([]uint64, 1), prev: make([]int32, 1), next: make([]int32, 1),
		was: make(map[uint64]bool),
	}
}

func (p *pool) has(name uint64) bool {
	_, ok := p.slots[name]
	return ok
}

func (p *pool) link(s int32) {
	p.prev[s], p.next[s] = p.prev[0], 0
	p.next[p.prev[0]], p.prev[0] = s, s
}

func (p *pool) unlink(s int32) {
	p.next[p.prev[s]], p.prev[p.next[s]] = p.next[s], p.prev[s]
}

// touch makes a name that is there the last victim.
func (p *pool) touch(name uint64) {
	if s, ok := p.slots[name]; ok {
		p.unlink(s)
		p.link(s)
	}
}

// put makes a name the last victim. If there are too many, it returns the one
// that leaves.
func (p *pool) put(name uint64) (victim uint64, full bool) {
	if p.has(name) {
		p.touch(name)
		return 0, false
	}
	p.note(name, false)
	s := int32(len(p.name))
	if len(p.slots) < p.size {
		p.name, p.prev, p.next = append(p.name, name), append(p.prev, 0), append(p.next, 0)
	} else {
		s = p.next[0]
		p.unlink(s)
		victim, full = p.name[s], true
		p.note(victim, true)
		delete(p.slots, victim)
		p.name[s] = name
	}
	p.slots[name] = s
	p.link(s)
	return victim, full
}

func (p *pool) note(name uint64, was bool) {
	if _, ok := p.was[name]; !ok {
		p.was[name] = was
		p.changed = append(p.changed, name)
	}
}

// changes returns the names that are there now and were not when settle was
// last called, or for gone the other way round. They live until the next call.
func (p *pool) changes(gone bool) []uint64 {
	p.told = p.told[:0]
	for _, name := range p.changed {
		if p.was[name] == gone && p.has(name) != gone {
			p.told = append(p.told, name)
		}
	}
	return p.told
}

func (p *pool) settle() {
	p.changed = p.changed[:0]
	clear(p.was)
}

// clear empties the pool. Nothing may be untold.
func (p *pool) clear() {
	clear(p.slots)
	p.name, p.prev, p.next = p.name[:1], p.prev[:1], p.next[:1]
	p.prev[0], p.next[0] = 0, 0
}

// take gives s a block, the device's next victim, whose content goes to the tier below.
func (e *Engine) take(s *sequence) {
	if name, named := e.cache.take(s); named {
		e.spill(name)
	}
}

// spill keeps a copy of an evicted block on the first lower tier, whose victim
// goes to the next.
func (e *Engine) spill(name uint64) {
	for _, p := range e.lower {
		if p.tier == event.External {
			return // it was put there when it was computed
		}
		victim, full := p.put(name)
		if !full {
			return
		}
		name = victim
	}
}

// below returns the highest lower tier that has a copy of the block.
func (e *Engine) below(name uint64) *pool {
	for _, p := range e.lower {
		if p.has(name) {
			return p
		}
	}
	return nil
}

// loadable counts the blocks of names, from the first on, that are on lower
// tiers and so need not be computed.
func (e *Engine) loadable(names []uint64) int {
	if len(e.lower) == 0 {
		return 0
	}
	for i, name := range names {
		if e.below(name) == nil {
			return i
		}
	}
	return len(names)
}

// load counts the blocks that are read from lower tiers, which keep their
// copies: the tail is the first of them to leave.
func (e *Engine) load(names []uint64) {
	for i := len(names) - 1; i >= 0; i-- {
		p := e.below(names[i])
		p.touch(names[i])
		e.report.Loaded[p.tier]++
	}
}

// flush emits what has been evicted or copied down: first what lower tiers got,
// by names alone, as engines do that no longer have the tokens; their content is
// then known. Each tier's are one run.
func (e *Engine) flush() {
	for _, p := range e.lower {
		if names := p.changes(false); len(names) > 0 {
			e.emit(event.Event{Kind: event.Stored, Tier: p.tier, Engine: names})
		}
	}
	if len(e.cache.evicted) > 0 {
		e.emit(event.Event{Kind: event.Removed, Tier: event.Device, Engine: e.cache.evicted})
		e.cache.evicted = e.cache.evicted[:0]
	}
	e.flushGroups()
	for _, p := range e.lower {
		if names := p.changes(true); len(names) > 0 {
			e.emit(event.Event{Kind: event.Removed, Tier: p.tier, Engine: names})
		}
		p.settle()
	}
}

// HeldOn returns how many blocks the engine can reuse from a tier.
func (e *Engine) HeldOn(t event.Tier) int {
	if t == event.Device {
		return e.Held()
	}
	for _, p := range e.lower {
		if p.tier == t {
			return len(p.slots)
		}
	}
	return 0
}

// AppendHeldOn appends the engine hashes of the blocks that the engine can reuse
// from a tier.
func (e *Engine) AppendHeldOn(dst []uint64, t event.Tier) []uint64 {
	if t == event.Device {
		return e.AppendHeld(dst)
	}
	for _, p := range e.lower {
		if p.tier == t {
			dst = p.appendNames(dst)
		}
	}
	return dst
}

func (p *pool) appendNames(dst []uint64) []uint64 {
	for s := p.next[0]; s != 0; s = p.next[s] {
		dst = append(dst, p.name[s])
	}
	return dst
}
