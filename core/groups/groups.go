package groups

import (
	"errors"
	"fmt"
	"slices"
)

// Kind is how the layers of a group look back, which decides what they need of a prefix.
type Kind uint8

// The kinds.
const (
	Full    Kind = iota // full attention, also MLA and with sinks: everything before
	Window              // a sliding window: the last tokens before
	Chunked             // chunked local attention: from the start of the chunk
	State               // Mamba, linear attention: the state at the boundary
	numKinds
)

// ParseKind returns the kind that vLLM's events name so. Groups of other kinds hold nothing
// that a later request could use.
func ParseKind(name []byte) (k Kind, ok bool) {
	switch string(name) {
	case "full_attention", "mla_attention", "sink_full_attention":
		return Full, true
	case "sliding_window", "sliding_window_mla":
		return Window, true
	case "chunked_local_attention":
		return Chunked, true
	case "mamba":
		return State, true
	}
	return 0, false
}

// Group is one cache group.
type Group struct {
	Kind  Kind
	Block int // tokens of a block
	Span  int // tokens of the window, or of a chunk
	// Eagle says that a hit gives up its last block, whose hidden states EAGLE's drafting
	// computes again.
	Eagle bool
}

// MaxGroups is how many groups a Layout may have.
const MaxGroups = 64

// ErrLayout is wrapped by what New returns.
var ErrLayout = errors.New("these cache groups cannot be")

// Layout is the cache groups of a model.
type Layout struct {
	classes []class // full attention first, else in the groups' order
	unit    int     // tokens between boundaries that have a hash
	align   int     // boundaries of hits are multiples of it
	fine    bool    // they are finer than blocks: a block's tail may be cached
}

// class is the groups of one specification, which are looked up together.
type class struct {
	Group
	members []int
}

// New returns the layout of the groups, which the Layout knows by their place. unit is how
// many tokens apart the boundaries are that have a hash (vLLM's prefix_match_unit); 0 is
// the smallest block. The error wraps ErrLayout.
func New(list []Group, unit int) (*Layout, error) {
	if len(list) == 0 || len(list) > MaxGroups {
		return nil, fmt.Errorf("%w: there are %d, give 1 to %d", ErrLayout, len(list), MaxGroups)
	}
	l := &Layout{unit: unit, align: 1}
	for i, g := range list {
		switch {
		case g.Kind >= numKinds:
			return nil, fmt.Errorf("%w: group %d is of kind %d", ErrLayout, i, g.Kind)
		case g.Block < 1 || g.Block > maxTokens || g.Span < 0 || g.Span > maxSpan:
			return nil, fmt.Errorf("%w: group %d has blocks of %d tokens and a span of %d", ErrLayout, i, g.Block, g.Span)
		case (g.Kind == Window || g.Kind == Chunked) && g.Span == 0:
			return nil, fmt.Errorf("%w: group %d does not say how far it looks back", ErrLayout, i)
		}
		if unit == 0 && (l.unit == 0 || g.Block < l.unit) {
			l.unit = g.Block
		}
		if l.align = lcm(l.align, g.Block); l.align > maxTokens {
			return nil, fmt.Errorf("%w: their blocks are multiples of one another nowhere below %d tokens", ErrLayout, maxTokens)
		}
		l.add(i, g)
	}
	for _, c := range l.classes {
		if l.unit < 1 || c.Block%l.unit != 0 {
			return nil, fmt.Errorf("%w: blocks of %d tokens are no multiple of %d", ErrLayout, c.Block, l.unit)
		}
		l.fine = l.fine || c.Kind == State && c.Block > l.unit
	}
	if slices.ContainsFunc(l.classes, func(c class) bool { return c.Kind != Full && c.Kind != State && c.Block != l.unit }) {
		l.fine = false // that of another kind ends with a block
	}
	if l.fine {
		l.align = l.unit
	}
	slices.SortStableFunc(l.classes, func(a, b class) int { return notFull(a) - notFull(b) })
	return l, nil
}

// Sizes are bounded, so that no product of two blocks, and no sum of a span and a block,
// overflows where an int has 32 bits.
const (
	maxTokens = 1 << 15
	maxSpan   = 1 << 24 // as events have it at most
)

func (l *Layout) add(i int, g Group) {
	for j := range l.classes {
		c := &l.classes[j]
		if c.Kind == g.Kind && c.Block == g.Block && c.Span == g.Span {
			c.members = append(c.members, i)
			c.Eagle = c.Eagle || g.Eagle
			return
		}
	}
	l.classes = append(l.classes, class{g, []int{i}})
}

func notFull(c class) int {
	if c.Kind == Full {
		return 0
	}
	return 1
}

func lcm(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}
