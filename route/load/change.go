package load

import (
	"time"

	"github.com/kvatlas/kvatlas/shard"
)

// Kind says what happened to a booking.
type Kind uint8

// The kinds of change.
const (
	Added Kind = iota + 1
	Prefilled
	Generated
	Filled
	Freed
	Sought  // no booking yet: its router will choose once others have heard of it
	Fetched // its rank fetches a part of its prompt from another one, until its prefill is complete
	Failing // of no booking: its router has left the rank's worker out, as it fails
)

// Change is one step in the life of a booking, as routers tell each other.
type Change struct {
	Kind Kind
	Key  Key

	Rank    shard.RankID  // Added and Failing only; of Fetched where it fetches from
	Request Request       // Added only; of Sought the length of the prompt
	Tokens  int           // Generated only: how many more
	Weight  float64       // Filled only: see Table.OutputBlock
	Ranks   []Want        // Sought only: those that suit it, the best first; none: it is not sought any more
	Held    bool          // Sought only: it waits for a rank to have less to do
	Waited  time.Duration // Sought only: since it came
}

// Want is a rank that suits a request, and how many tokens it would have to compute.
type Want struct {
	Rank      shard.RankID
	NewTokens int
}
