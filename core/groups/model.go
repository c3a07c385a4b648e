package groups

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// Model is the cache groups of a model, by the numbers that events have.
type Model struct {
	layout  *Layout
	numbers []uint8
	known   uint16
}

// NewModel returns the Model of the groups, in a space of so many tokens a block. It fails,
// with an error that wraps ErrLayout, where it is not known of each group what it needs of a prefix,
// or where blocks of the space do not make up those of a group.
func NewModel(list []event.CacheGroup, blockSize uint32) (*Model, error) {
	m := &Model{}
	var layout []Group
	list = slices.SortedFunc(slices.Values(list), func(a, b event.CacheGroup) int { return cmp.Compare(a.Number, b.Number) })
	if err := event.CheckCacheGroups(list); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLayout, err)
	}
	for _, g := range list {
		kind, ok := ParseKind([]byte(g.Kind))
		switch {
		case !ok:
			return nil, fmt.Errorf("%w: group %d is of kind %q", ErrLayout, g.Number, g.Kind)
		case g.Number == 0 && (kind != Full || g.BlockSize != blockSize):
			return nil, fmt.Errorf("%w: group 0 has %s and blocks of %d tokens, the space full attention's of %d", ErrLayout, g.Kind, g.BlockSize, blockSize)
		case g.BlockSize == 0 || g.BlockSize%blockSize != 0:
			return nil, fmt.Errorf("%w: group %d has blocks of %d tokens, no multiple of %d", ErrLayout, g.Number, g.BlockSize, blockSize)
		}
		m.known |= 1 << g.Number
		m.numbers = append(m.numbers, g.Number)
		layout = append(layout, Group{Kind: kind, Block: int(g.BlockSize), Span: int(g.Span), Eagle: g.Eagle})
	}
	if m.known&1 == 0 || len(list) < 2 {
		return nil, fmt.Errorf("%w: there is no group 0, or no other one", ErrLayout)
	}
	var err error
	if m.layout, err = New(layout, int(blockSize)); err != nil {
		return nil, err
	}
	return m, nil
}
