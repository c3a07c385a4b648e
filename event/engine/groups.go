package engine

import (
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// maxGroups is how many cache groups a model may have to be told apart.
const maxGroups = 64

// groupKind is what is known about a cache group.
type groupKind uint8

const (
	groupUnknown groupKind = iota
	groupMain              // full attention
	groupOther             // one that looks back otherwise
	groupNone              // one whose blocks no later request can use
)

// kindOfGroup returns the kind that vLLM's events name so.
func kindOfGroup(name []byte) groupKind {
	switch string(name) {
	case "":
		return groupUnknown
	case "full_attention", "mla_attention", "sink_full_attention":
		return groupMain
	case "encoder_only_attention", "cross_attention":
		return groupNone
	}
	return groupOther
}

// cacheGroups is what a stream has said of its model's cache groups: their kinds at stores,
// while removals name only the number.
type cacheGroups struct {
	kinds [maxGroups]groupKind // by group_idx
	// main is the first group of full attention that was met, and 1: of it the index knows
	// the places of blocks. 0: none.
	main   int64
	hybrid bool // there are others
	list   []event.CacheGroup
}

// of returns the group of the event's blocks as event.Event.Group has it, and whether
// events can be of it. Of a number without a kind, 0 is the main group.
func (c *cacheGroups) of(f *fields, tokens bool) (group uint8, ok bool) {
	kind, numbered := kindOfGroup(f.spec), f.group >= 0 && f.group < maxGroups
	if numbered {
		if kind == groupUnknown {
			kind = c.kinds[f.group]
		} else {
			if old := c.kinds[f.group]; old != groupUnknown && old != kind {
				c.untell() // the engine is not what it was, nor is what is known of it
			}
			c.kinds[f.group] = kind
		}
	}
	switch {
	case kind == groupNone:
		return 0, false
	case kind == groupMain && f.group < 0, kind == groupUnknown && f.group <= 0:
		c.learn(f, tokens, 0)
		return 0, true
	case kind == groupMain && (c.main == 0 || c.main == f.group+1):
		c.main = f.group + 1
		c.learn(f, tokens, 0)
		return 0, true
	}
	c.hybrid = true
	if f.group < 0 || f.group+1 >= event.MaxCacheGroups {
		c.untell()
		return 0, false
	}
	c.learn(f, tokens, uint8(f.group+1))
	return uint8(f.group + 1), true
}

// learn notes what a store of computed blocks says of its group.
func (c *cacheGroups) learn(f *fields, tokens bool, number uint8) {
	if f.kind != event.Stored || !tokens || len(f.spec) == 0 || f.blockSize < 1 {
		return
	}
	i := 0
	for ; i < len(c.list) && c.list[i].Number != number; i++ {
	}
	if i < len(c.list) {
		g := &c.list[i]
		if g.Kind == event.Untold {
			return
		}
		if g.Kind == string(f.spec) && g.Span == uint32(f.window) && (g.BlockSize == uint32(f.blockSize) || g.BlockSize == 0) {
			return
		}
	}
	said := event.CacheGroup{Number: number, Kind: string(f.spec), Span: uint32(f.window), BlockSize: uint32(f.blockSize)}
	if event.CheckCacheGroups([]event.CacheGroup{said}) != nil {
		return // what cannot be is not believed
	}
	c.list = slices.Clone(c.list) // one that was told stays as it is
	if i == len(c.list) {
		c.list = append(c.list, said)
		return
	}
	said.BlockSize = 0
	c.list[i] = said // some are parts of blocks, then, and what a whole one is they do not tell
}

// untell notes that blocks are not told apart well enough to follow them: from now on a group
// is in the list that says so to all who have believed the list before.
func (c *cacheGroups) untell() {
	const number = event.MaxCacheGroups - 1
	if slices.ContainsFunc(c.list, func(g event.CacheGroup) bool { return g.Kind == event.Untold }) {
		return
	}
	c.list = slices.DeleteFunc(slices.Clone(c.list), func(g event.CacheGroup) bool { return g.Number == number })
	c.list = append(c.list, event.CacheGroup{Number: number, Kind: event.Untold})
}

// told returns what is known of the groups, if there are several and something was said of
// them.
func (c *cacheGroups) told() []event.CacheGroup {
	if !c.hybrid || len(c.list) == 1 && c.list[0].Kind == event.Untold {
		return nil
	}
	return c.list
}
