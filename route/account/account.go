package account

import "github.com/kvatlas/kvatlas/shard"

// Choice is what of a prompt was to be found cached when its worker was chosen, in tokens.
type Choice struct {
	Known     bool // whether it was looked up; if not, all that follows but Prompt is 0
	Prompt    int
	Reachable int
	Selected  int
	// Best is the rank that had Reachable, the chosen one if it did.
	Best shard.RankID
	Why  Shortfall // of Selected
	// Estimated: the model has caches that are not indexed, so of what the index has a part
	// is Reachable and Selected, learnt from what engines report.
	Estimated bool
	// Pull are those of Selected that the chosen rank was to fetch from PullFrom.
	Pull     int
	PullFrom shard.RankID
}

// Shortfall is why the chosen rank should find less cached than the best one.
type Shortfall uint8

// The reasons. NoShortfall: it should not.
const (
	NoShortfall   Shortfall = iota
	Load                    // the policy prefers another rank, for what is in use or by chance
	Busy                    // the best one's load is beyond a threshold
	NoRoom                  // the best one says that it has no room
	Excluded                // the request may not go there: it names others, or has failed there
	Session                 // the request's session stays where it was
	Stale                   // the index lacks events of the best one, which counts for a part
	NumShortfalls = iota
)

// String returns the reason's name in metrics and answers.
func (s Shortfall) String() string {
	return [...]string{"", "load", "busy", "no_room", "excluded", "session", "stale", "invalid"}[min(s, NumShortfalls)]
}

// Miss is why an engine found other than was expected.
type Miss uint8

// The reasons. NoMiss: it did not, or the difference is within a block.
const (
	NoMiss       Miss = iota
	Evicted           // blocks that were there have been let go of since
	Late              // they had been before, and the index heard of it after the choice, or has not yet
	Stored            // more was found, and the index knows of it by now
	TokensDiffer      // the engine has counted another number of tokens in the prompt
	Unknown           // none of these
	NotPulled         // what was to be fetched from another worker did not come
	NumMisses    = iota
)

// String returns the reason's name in metrics and answers.
func (m Miss) String() string {
	return [...]string{"", "evicted", "event_late", "stored", "tokens_differ", "unknown", "not_pulled", "invalid"}[min(m, NumMisses)]
}

// Evidence is what is known when an engine has said what it found.
type Evidence struct {
	BlockSize int
	// Counted are the prompt's tokens as the engine counts them, Looked those that were
	// looked up; 0 if the one is not known, or the other only about.
	Counted, Looked int
	// Selected and Actual are the tokens that were expected, and found.
	Selected, Actual int
	// Now are the tokens that the rank should find by now.
	Now int
	// Lost are the tokens of blocks that the rank is known to have let go of since the
	// choice, whosever prompts', and LostBefore whether all that was published before it.
	Lost       int
	LostBefore bool
	// Renewed: what the index has of the rank was read anew since. Stale: it lacks events.
	Renewed, Stale bool
}

// Differs reports whether the tokens found are not those expected: by more than a block, as
// engines compute the last one anew, and report in blocks or in tokens.
func (e *Evidence) Differs() bool {
	d := e.Selected - e.Actual
	return d > e.BlockSize || -d > e.BlockSize
}

// Judge says why the engine found other than was expected.
//
// Fewer: where the index knows less than it did, or of as much that was let go of since,
// that was evicted; if it was so before the choice already, the event was late, as it may
// yet be for a rank that the index lacks events of. More: if the index has it by now it was
// stored meanwhile, for another request that begins so, or heard of late; who asks now, when
// the request's own blocks are stored, cannot tell.
func Judge(e *Evidence) Miss {
	missing := e.Selected - e.Actual
	switch {
	case !e.Differs():
		return NoMiss
	case e.Counted > 0 && e.Looked > 0 && e.Counted != e.Looked:
		return TokensDiffer
	case missing < 0 && e.Now+e.BlockSize >= e.Actual:
		return Stored
	case missing < 0:
		return Unknown
	case e.Renewed:
		return Late
	case e.Now < e.Selected || e.Lost+e.BlockSize >= missing:
		if e.LostBefore {
			return Late
		}
		return Evicted
	case e.Stale:
		return Late
	}
	return Unknown
}
