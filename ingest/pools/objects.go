package pools

import (
	"bytes"
	"math/bits"
	"slices"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
)

// The media of an object. listed is one of which a list says that it is there, and not where.
const (
	memory = iota
	disk
	listed
	media
)

// objects is what of a store's objects is a pool's blocks, pure state.
type objects struct {
	source *event.PoolSource
	parts  map[string]int      // number of each, as they come
	blocks map[uint64]*present // by engine hash, of which a part is there
	max    int                 // blocks
	left   Left
	whole  int // blocks of which all parts are there
}

// present is a bit for each part, by medium.
type present [media]uint64

func (p *present) any() uint64 { return p[memory] | p[disk] | p[listed] }

// Left counts what was left out, by reason.
type Left struct {
	Foreign uint64 // objects of another prefix, tenant or cache group, and what is no block's
	Parts   uint64 // objects of parts beyond event.MaxPoolParts
	Room    uint64 // objects for which there was no room
	Events  uint64 // events that say nothing of an object
}

func newObjects(s *event.PoolSource, most int) *objects {
	return &objects{source: s, parts: make(map[string]int), blocks: make(map[uint64]*present), max: most}
}

// parse returns the block and part that a key is of.
func (o *objects) parse(key []byte) (hash uint64, part int, ok bool) {
	k, ok := engine.ParseObjectKey(key)
	if !ok || !bytes.Equal(k.Prefix, []byte(o.source.Prefix)) || !o.wants(k.Group) {
		o.left.Foreign++
		return 0, 0, false
	}
	part, known := o.parts[string(k.Part)]
	if !known {
		if part = len(o.parts); part == event.MaxPoolParts {
			o.left.Parts++
			return 0, 0, false
		}
		o.parts[string(k.Part)] = part
	}
	return k.Hash, part, true
}

func (o *objects) wants(group uint32) bool {
	if len(o.source.Groups) == 0 {
		return group == 0
	}
	return slices.Contains(o.source.Groups, group)
}

// apply applies an event of a key: +1 says that its block is whole from now on, -1 that it is no
// more, 0 that nothing has changed.
func (o *objects) apply(kind event.Kind, key []byte, medium int) (hash uint64, change int) {
	hash, part, ok := o.parse(key)
	if !ok {
		return 0, 0
	}
	p := o.blocks[hash]
	if p == nil {
		if kind != event.Stored {
			return hash, 0
		}
		if len(o.blocks) >= o.max {
			o.left.Room++
			return hash, 0
		}
		p = new(present)
		o.blocks[hash] = p
	}
	was := o.isWhole(p)
	if kind == event.Stored {
		p[medium] |= 1 << part
	} else {
		// Of an object that was listed it is not known where else it is: it counts as gone until
		// it is said or listed again.
		p[medium] &^= 1 << part
		p[listed] &^= 1 << part
	}
	is := o.isWhole(p)
	if p.any() == 0 {
		delete(o.blocks, hash)
	}
	switch {
	case is && !was:
		o.whole++
		return hash, 1
	case was && !is:
		o.whole--
		return hash, -1
	}
	return hash, 0
}

func (o *objects) isWhole(p *present) bool {
	return bits.OnesCount64(p.any()) >= int(o.source.Parts)
}

// has reports whether the block is whole.
func (o *objects) has(hash uint64) bool {
	p := o.blocks[hash]
	return p != nil && o.isWhole(p)
}

// mediumOf returns which medium an event names: where it names none, memory.
func mediumOf(name []byte) int {
	if t, ok := event.ParseTier(name); ok && t == event.Disk {
		return disk
	}
	return memory
}
