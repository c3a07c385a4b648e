package mock

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/event"
)

// Group is a cache group of the model besides full attention, whose blocks the cache has. Its
// blocks are a pool of their own: what running requests use of it costs the others nothing,
// and leaves like the rest once it is the least recently used.
type Group struct {
	Kind      string // as vLLM names it: sliding_window, chunked_local_attention, mamba, full_attention
	Span      int    // tokens of the window, or of a chunk
	BlockSize int    // tokens, a multiple of the engine's blocks; default these
	Blocks    int    // of the pool; default those of the cache
}

// group is what an engine has of a Group.
type group struct {
	Group
	number  uint8 // in events
	pool    *pool
	evicted []uint64 // names, since the last flush
}

// groupNumber is how events name the i-th Group: as decoders do, which number vLLM's
// group_idx from 1 on, where full attention is group_idx 0.
func groupNumber(i int) uint8 { return uint8(i + 2) }

// CacheGroups returns what is registered of the model's cache groups: nil if full attention
// is all.
func (c *Config) CacheGroups() (list []event.CacheGroup) {
	size := c.BlockSize
	if size == 0 {
		size = DefaultBlockSize
	}
	for i, g := range c.Groups {
		if list == nil {
			list = append(list, event.CacheGroup{Kind: "full_attention", BlockSize: uint32(size)})
		}
		if g.BlockSize == 0 {
			g.BlockSize = size
		}
		list = append(list, event.CacheGroup{Number: groupNumber(i), Kind: g.Kind, BlockSize: uint32(g.BlockSize), Span: uint32(g.Span)})
	}
	return list
}

var errGroup = errors.New("mock engine: this cache group cannot be")

// ParseGroups reads groups as KIND:SPAN:BLOCK:BLOCKS, of which all but the kind may be left
// out from the end, or be 0.
func ParseGroups(texts []string) (list []Group, err error) {
	for _, text := range texts {
		parts := strings.Split(text, ":")
		g := Group{Kind: parts[0]}
		numbers := []*int{&g.Span, &g.BlockSize, &g.Blocks}
		if len(parts) > 1+len(numbers) {
			return nil, fmt.Errorf("%q: give KIND:SPAN:BLOCK:BLOCKS at most", text)
		}
		for i, part := range parts[1:] {
			if *numbers[i], err = strconv.Atoi(part); err != nil {
				return nil, fmt.Errorf("%q: %w", text, err)
			}
		}
		list = append(list, g)
	}
	_, _, err = newGroups(&Config{BlockSize: 1, Blocks: 1, Groups: list})
	return list, err
}

func newGroups(cfg *Config) (list []*group, align int, err error) {
	align = 1
	for i, g := range cfg.Groups {
		if g.BlockSize == 0 {
			g.BlockSize = cfg.BlockSize
		}
		if g.Blocks == 0 {
			g.Blocks = cfg.Blocks
		}
		switch {
		case groupNumber(i) >= event.MaxCacheGroups:
			return nil, 0, fmt.Errorf("%w: number %d, give at most %d", errGroup, i+1, event.MaxCacheGroups-2)
		case g.BlockSize < 1 || g.BlockSize > 1<<15 || g.BlockSize%cfg.BlockSize != 0 || g.Blocks < 1 || g.Blocks > 1<<30:
			return nil, 0, fmt.Errorf("%w: %d blocks of %d tokens", errGroup, g.Blocks, g.BlockSize)
		}
		switch g.Kind {
		case "full_attention", "mamba":
		case "sliding_window", "chunked_local_attention":
			if g.Span < 1 || g.Span > 1<<30 {
				return nil, 0, fmt.Errorf("%w: %s of %d tokens", errGroup, g.Kind, g.Span)
			}
		default:
			return nil, 0, fmt.Errorf("%w: it is of kind %q", errGroup, g.Kind)
		}
		list = append(list, &group{Group: g, number: groupNumber(i), pool: newPool(event.Device, g.Blocks)})
		align = multiple(align, g.BlockSize/cfg.BlockSize)
	}
	return list, align, nil
}

// multiple returns the least common multiple.
func multiple(a, b int) int {
	n := a
	for n%b != 0 {
		n += a
	}
	return n
}

// from returns the first block that the group needs for the prefix of so many blocks, each of
// so many tokens, and what its own blocks are apart.
func (g *group) from(blocks, size int) (first, step int) {
	step = g.BlockSize / size
	switch tokens := blocks * size; g.Kind {
	case "sliding_window":
		first = max(0, blocks-max(1, (g.Span-1+g.BlockSize-1)/g.BlockSize)*step)
	case "chunked_local_attention":
		first = tokens / g.Span * g.Span / g.BlockSize * step
	case "mamba":
		first = max(0, blocks-step)
	}
	return first, step
}

// allows tells whether the group has what it needs to go on after the first blocks of names.
func (g *group) allows(names []uint64, blocks, size int) bool {
	first, step := g.from(blocks, size)
	for end := first + step; end <= blocks; end += step {
		if !g.pool.has(names[end-1]) {
			return false
		}
	}
	return true
}

// agreed returns how many of the leading blocks, of which full attention has all, every group
// allows to reuse.
func (e *Engine) agreed(names []uint64, blocks int) int {
	if len(e.groups) == 0 {
		return blocks
	}
	size := e.cfg.BlockSize
	p := blocks - blocks%e.align
	for p > 0 && slices.ContainsFunc(e.groups, func(g *group) bool { return !g.allows(names, p, size) }) {
		p -= e.align
	}
	return p
}

// touchGroups makes what is needed to go on after the first blocks the last to leave.
func (e *Engine) touchGroups(names []uint64, blocks int) {
	for _, g := range e.groups {
		first, step := g.from(blocks, e.cfg.BlockSize)
		for end := first + step; end <= blocks; end += step {
			g.pool.touch(names[end-1])
		}
	}
}

// group puts what the groups have of computed blocks [from, to) of s into their pools: of
// states the last one alone, as a step leaves it.
func (e *Engine) group(s *sequence, from, to int) {
	for _, g := range e.groups {
		step := g.BlockSize / e.cfg.BlockSize
		first, last := from/step, to/step // blocks of the group
		if g.Kind == "mamba" {
			first = max(first, last-1)
		}
		first = max(first, last-g.pool.size)
		var names []uint64
		for i := first; i < last; i++ {
			g.pool.touch(s.name[(i+1)*step-1])
		}
		e.flush()
		for i := first; i < last; i++ {
			name := s.name[(i+1)*step-1]
			if g.pool.has(name) {
				continue
			}
			if victim, full := g.pool.put(name); full {
				g.evicted = append(g.evicted, victim)
			}
			names = append(names, name)
		}
		if len(names) > 0 {
			e.emit(event.Event{Kind: event.Stored, Tier: event.Device, Group: g.number, Engine: names})
		}
	}
}

// flushGroups emits what has left the groups.
func (e *Engine) flushGroups() {
	for _, g := range e.groups {
		if g.pool.settle(); len(g.evicted) > 0 {
			e.emit(event.Event{Kind: event.Removed, Tier: event.Device, Group: g.number, Engine: g.evicted})
			g.evicted = g.evicted[:0]
		}
	}
}

// AppendHeldBy appends the engine hashes of the blocks that a group of Config.CacheGroups
// holds: of group 0, those of the cache.
func (e *Engine) AppendHeldBy(dst []uint64, number uint8) []uint64 {
	if number == 0 {
		return e.AppendHeld(dst)
	}
	for _, g := range e.groups {
		if g.number == number {
			dst = g.pool.appendNames(dst)
		}
	}
	return dst
}
