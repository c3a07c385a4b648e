package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/shard"
)

// Version is the format that is written; versions from oldestVersion on are
// read.
const (
	Version       = 1
	oldestVersion = 1
)

// Errors that callers may want to tell apart. All are wrapped with a reason.
var (
	// ErrDamaged is of a file that is not what was written.
	ErrDamaged = errors.New("the snapshot is damaged")
	// ErrVersion is of a file in a format that this program does not know.
	ErrVersion = errors.New("the snapshot has a format that this program does not know")
)

// Meta says what a snapshot is of.
type Meta struct {
	Space   Space     `json:"space"`
	Stream  string    `json:"stream"`  // its name
	Created time.Time `json:"created"` // of the stream
	// Seq is the sequence in the stream up to which everything is in the
	// snapshot; some of what follows may be, too. Stored is when the stream
	// stored that message, if it is known.
	Seq    uint64    `json:"seq"`
	Stored time.Time `json:"stored,omitzero"`

	Written  time.Time   `json:"written"`
	Writer   string      `json:"writer"` // name of the replica
	Program  string      `json:"program"`
	Fence    uint64      `json:"fence"` // fencing number of the writer's lease
	Sections int         `json:"sections"`
	Ranks    []Publisher `json:"ranks"`          // by rising Holder
	Idle     []Publisher `json:"idle,omitempty"` // those without a holder: they never stored a block
}

// Space is an event.Space; the two convert into each other.
type Space struct {
	Model     string `json:"model"`
	BlockSize uint32 `json:"block_size"`
	Group     string `json:"group"`
}

// Publisher is one publisher stream. Holders of the runs that no rank has are left
// out of the snapshot.
type Publisher struct {
	Holder uint32 `json:"holder"` // its number in the runs
	Worker uint64 `json:"worker,string"`
	DPRank uint32 `json:"dp_rank"`
	// By its Left a rank that the registry says to have left otherwise is not to be
	// taken from the snapshot.
	follow.Position
}

// ID returns which rank it is.
func (r *Publisher) ID() shard.RankID { return shard.RankID{Worker: r.Worker, DPRank: r.DPRank} }

// Footer is what a snapshot has, by count. Held and Digest are of the ranks of
// the Meta.
type Footer struct {
	Chunks uint64                 `json:"chunks"` // before the footer
	Runs   uint64                 `json:"runs"`
	Blocks uint64                 `json:"blocks"` // unique: of runs
	Held   [event.NumTiers]uint64 `json:"held"`   // (holder, name) pairs with copies
	Raw    uint64                 `json:"raw_bytes"`
	Digest uint64                 `json:"digest,string"`
}

func (f *Footer) add(g *Footer) {
	f.Runs += g.Runs
	f.Blocks += g.Blocks
	for t := range f.Held {
		f.Held[t] += g.Held[t]
	}
	f.Digest += g.Digest
}

func decodeMeta(data []byte) (*Meta, error) {
	m := new(Meta)
	if err := json.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("%w: its description: %w", ErrDamaged, err)
	}
	if m.Sections < 1 || m.Sections > maxSections {
		return nil, fmt.Errorf("%w: %d sections", ErrDamaged, m.Sections)
	}
	for i := range m.Ranks {
		if i > 0 && m.Ranks[i].Holder <= m.Ranks[i-1].Holder || m.Ranks[i].Holder >= maxHolders {
			return nil, fmt.Errorf("%w: ranks out of order", ErrDamaged)
		}
	}
	return m, nil
}

// The bounds of what is believed.
const (
	maxSections = 1 << 10 // as many shards as there can be
	maxHolders  = 1 << 24
	maxPart     = 256 << 20 // bytes of a chunk's part, raw
)
