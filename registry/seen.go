package registry

import (
	"fmt"

	"github.com/kvatlas/kvatlas/event"
)

// Seen is what the publisher of a worker has seen of one rank's engine, where that is
// to be known to whoever looks for what is configured wrong. Reasons are those of
// metrics (engine.Reason, zmqfeed.Reason).
type Seen struct {
	DPRank    uint32   `json:"dp_rank"`
	Error     string   `json:"error,omitempty"`      // why its events are not read at the moment
	Waits     string   `json:"waits,omitempty"`      // why what is read cannot be published at the moment
	Batches   bool     `json:"batches,omitempty"`    // some were read since the publisher started
	BlockSize uint32   `json:"block_size,omitempty"` // the engine's, where it is another than the worker's
	Tiers     []string `json:"tiers,omitempty"`      // of blocks held now, as event.Tier writes them
	Salted    bool     `json:"salted,omitempty"`     // some blocks were of salted prompts
	Replay    string   `json:"replay,omitempty"`     // what is wrong with the replay endpoint, see ReplayOf
	LeftOut   []string `json:"left_out,omitempty"`   // reasons of blocks that were left out
	Lost      []string `json:"lost,omitempty"`       // reasons of batches that are lost for good
}

// What may be wrong with the ways in which what is missing is had from an engine.
const (
	ReplayNone          = "none"                 // the publisher was given none
	ReplayUnreachable   = "unreachable"          // the replay endpoint was asked last in vain
	SnapshotUnreachable = "snapshot_unreachable" // the snapshot endpoint was
)

// ReplayOf returns what is wrong with the endpoints; "" if nothing is known to be.
func ReplayOf(replay string, replayDown bool, snapshot string, snapshotDown bool) string {
	switch {
	case snapshot != "" && snapshotDown:
		return SnapshotUnreachable
	case replay == "" && snapshot == "":
		return ReplayNone
	case replayDown:
		return ReplayUnreachable
	}
	return ""
}

// maxReasons bounds each list of a Seen.
const maxReasons = 32

// checkSeen reports what cannot be.
func (w *Worker) checkSeen() error {
	if len(w.Seen) > maxRanks {
		return fmt.Errorf("what was seen of %d ranks, at most %d", len(w.Seen), maxRanks)
	}
	for i := range w.Seen {
		s := &w.Seen[i]
		for _, list := range [...][]string{s.Tiers, s.LeftOut, s.Lost} {
			if len(list) > maxReasons {
				return fmt.Errorf("what was seen of rank %d: %d reasons, at most %d", s.DPRank, len(list), maxReasons)
			}
		}
		for _, name := range s.Tiers {
			if _, ok := event.ParseTier([]byte(name)); !ok {
				return fmt.Errorf("what was seen of rank %d: tier %q is not known", s.DPRank, name)
			}
		}
	}
	return nil
}

// texts are those of what was seen.
func (s *Seen) texts() []string {
	list := append([]string{s.Error, s.Waits, s.Replay}, s.LeftOut...)
	return append(list, s.Lost...)
}
