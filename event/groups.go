package event

import (
	"errors"
	"fmt"
	"slices"
)

// MaxCacheGroups is how many cache groups of a model events tell apart: group 0 is the one
// of which an index knows the places (full attention), the others are numbered as their
// engine does, from 1 on.
const MaxCacheGroups = 16

// CacheGroup describes one cache group of a model that keeps several kinds of cache. What
// is zero is not known.
type CacheGroup struct {
	Number uint8 `json:"number"` // of Event.Group
	// Kind is vLLM's name of it, as full_attention, sliding_window,
	// chunked_local_attention or mamba.
	Kind      string `json:"kind"`
	BlockSize uint32 `json:"block_size"`     // tokens
	Span      uint32 `json:"span,omitempty"` // tokens of the window, or of a chunk
	// Eagle says that a hit gives up its last block, which EAGLE's drafting computes again.
	Eagle bool `json:"eagle,omitempty"`
}

// Untold is the kind of a group in whose place something is that is not known well enough:
// who says it says that answers are not exact.
const Untold = "untold"

// maxKind bounds the name of a kind.
const maxKind = 64

var errCacheGroups = errors.New("these cache groups cannot be")

// CheckCacheGroups refuses lists that name a group twice or that no event can be of.
func CheckCacheGroups(list []CacheGroup) error {
	var seen [MaxCacheGroups]bool
	for _, g := range list {
		switch {
		case g.Number >= MaxCacheGroups:
			return fmt.Errorf("%w: number %d, give 0 to %d", errCacheGroups, g.Number, MaxCacheGroups-1)
		case seen[g.Number]:
			return fmt.Errorf("%w: number %d is there twice", errCacheGroups, g.Number)
		case g.Kind == "" || len(g.Kind) > maxKind:
			return fmt.Errorf("%w: number %d has no kind, or one of more than %d bytes", errCacheGroups, g.Number, maxKind)
		case g.BlockSize > maxGroupTokens || g.Span > maxGroupTokens:
			return fmt.Errorf("%w: number %d has blocks of %d tokens and a span of %d, give at most %d", errCacheGroups, g.Number, g.BlockSize, g.Span, maxGroupTokens)
		}
		seen[g.Number] = true
	}
	return nil
}

// maxGroupTokens bounds sizes in tokens.
const maxGroupTokens = 1 << 24

// MergeCacheGroups returns said, by number, with what it leaves open as known has it, and
// the groups that known alone has. Where they contradict each other the group is Untold.
func MergeCacheGroups(said, known []CacheGroup) []CacheGroup {
	all := slices.Clone(said)
	for _, k := range known {
		i := slices.IndexFunc(all, func(g CacheGroup) bool { return g.Number == k.Number })
		if i < 0 {
			all = append(all, k)
			continue
		}
		g := &all[i]
		if k.Kind == Untold || reach(g.Kind) != reach(k.Kind) || differ(g.Span, k.Span) || differ(g.BlockSize, k.BlockSize) {
			g.Kind = Untold // one of the two is of another model
		}
		if g.BlockSize == 0 {
			g.BlockSize = k.BlockSize
		}
		if g.Span == 0 {
			g.Span = k.Span
		}
		g.Eagle = g.Eagle || k.Eagle
	}
	slices.SortFunc(all, func(a, b CacheGroup) int { return int(a.Number) - int(b.Number) })
	return all
}

// reach returns one name for all kinds that look back alike: MLA is full attention, too.
func reach(kind string) string {
	switch kind {
	case "mla_attention", "sink_full_attention":
		return "full_attention"
	case "sliding_window_mla":
		return "sliding_window"
	}
	return kind
}

// differ tells whether two sizes that are both known are not the same.
func differ(a, b uint32) bool { return a != 0 && b != 0 && a != b }
