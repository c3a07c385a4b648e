package load

import "github.com/kvatlas/kvatlas/shard"

// Kind says what happened to a booking.
type Kind uint8

// The kinds of change.
const (
	Added Kind = iota + 1
	Prefilled
	Generated
	Filled
	Freed
)

// Change is one step in the life of a booking, as routers tell each other.
type Change struct {
	Kind Kind
	Key  Key

	Rank    shard.RankID // Added only
	Request Request      // Added only
	Tokens  int          // Generated only: how many more
	Weight  float64      // Filled only: see Table.OutputBlock
}
