package pools

import (
	"bytes"
	"math/bits"
	"slices"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
)

// objects is what of a store's objects is a pool's blocks, pure state.
type objects struct {
	source *event.PoolSource
	parts  map[string]int    // number of each, as they come
	blocks map[uint64]uint64 // by engine hash a bit for each part that is there; none without one
	max    int               // blocks
	left   Left
	whole  int // blocks of which all parts are there
}

// Left counts what was left out, by reason.
type Left struct {
	Foreign uint64 // objects of another prefix, tenant or cache group, and what is no block's
	Parts   uint64 // objects of parts beyond event.MaxPoolParts
	Room    uint64 // objects for which there was no room
	Events  uint64 // events that say nothing of an object
}

func newObjects(s *event.PoolSource, most int) *objects {
	return &objects{source: s, parts: make(map[string]int), blocks: make(map[uint64]uint64), max: most}
}

// parse returns the block and part that a key is of.
func (o *objects) parse(key []byte) (hash uint64, part int, ok bool) {
	var k engine.ObjectKey
	if len(key) <= maxKey {
		k, ok = engine.ParseObjectKey(key)
	}
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
// more, 0 that nothing has changed. What is removed is gone, whatever medium the event names: the master says
// it once, of an object that was on two, with the name of one (3b5a594).
func (o *objects) apply(kind event.Kind, key []byte) (hash uint64, change int) {
	hash, part, ok := o.parse(key)
	if !ok {
		return 0, 0
	}
	was := o.blocks[hash]
	is := was | 1<<part
	if kind != event.Stored {
		is = was &^ (1 << part)
	}
	switch {
	case is == 0:
		delete(o.blocks, hash)
	case was == 0 && len(o.blocks) >= o.max:
		o.left.Room++
		return hash, 0
	default:
		o.blocks[hash] = is
	}
	switch before, after := o.isWhole(was), o.isWhole(is); {
	case after && !before:
		o.whole++
		return hash, 1
	case before && !after:
		o.whole--
		return hash, -1
	}
	return hash, 0
}

func (o *objects) isWhole(parts uint64) bool { return bits.OnesCount64(parts) >= int(o.source.Parts) }

// has reports whether the block is whole.
func (o *objects) has(hash uint64) bool { return o.isWhole(o.blocks[hash]) }
