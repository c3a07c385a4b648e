package dump

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// Version is that of the lines.
const Version = 2

// Errors of a Loader.
var (
	ErrDamaged   = errors.New("the dump is damaged")
	ErrTruncated = errors.New("the dump ends early")
	ErrVersion   = errors.New("the dump is of a version that is not known")
)

// Header is the first line.
type Header struct {
	Version   int    `json:"version"`
	Model     string `json:"model"`
	Group     string `json:"group"`
	BlockSize uint32 `json:"block_size"`
	// HashScheme says how the local hashes are made (registry.Scheme).
	HashScheme string `json:"hash_scheme,omitempty"`
	Position
	// Cursor is that of the request: ranks up to it are left out.
	Cursor string `json:"cursor,omitempty"`
}

// Space returns what the dump is of.
func (h *Header) Space() event.Space {
	return event.Space{Model: h.Model, Group: h.Group, BlockSize: h.BlockSize}
}

// Position is how far the events of a space were read at a moment; nothing if
// they are read from no stream.
type Position struct {
	Stream    *Stream     `json:"stream,omitempty"`
	Positions []Publisher `json:"positions,omitempty"`
}

// Stream is a position in a JetStream stream.
type Stream struct {
	// Seq is of a message: it and all before are applied, and perhaps some after.
	Seq     uint64    `json:"seq"`
	Created time.Time `json:"created"` // when the stream was; another time: another stream
	// Stored is when the stream stored the message, if that is known.
	Stored time.Time `json:"stored,omitzero"`
}

// Publisher is how far the events of a rank were applied, exactly.
type Publisher struct {
	Worker      uint64 `json:"worker_id,string"`
	DPRank      uint32 `json:"dp_rank"`
	Incarnation uint64 `json:"incarnation,string"`
	LastID      uint64 `json:"last_event_id"`
	Incomplete  bool   `json:"incomplete,omitempty"` // the index may have more or less than the rank
	// Ahead says that the incarnation was learnt from the publisher, and that
	// the stream may still bring older ones. Ended are those that are over, as
	// decimal numbers, oldest first.
	Ahead bool     `json:"ahead,omitempty"`
	Ended []string `json:"ended,omitempty"`
	// Left tells which departure of the rank is accounted for: it is back since,
	// unless it is Departed.
	Left     time.Time `json:"left,omitzero"`
	Departed bool      `json:"departed,omitempty"`
}

// Of returns the position of a rank; nil if there is none.
func (p *Position) Of(id shard.RankID) *Publisher {
	for i := range p.Positions {
		if k := &p.Positions[i]; k.Worker == id.Worker && k.DPRank == id.DPRank {
			return k
		}
	}
	return nil
}

// Sum is what lines said together.
type Sum struct {
	Events uint64 `json:"events"`
	Blocks uint64 `json:"blocks"` // blocks that are held, on each tier
	// Digest is the sum of their terms (core.DigestTerm): of all ranks and their cache
	// groups at one moment that of the space.
	Digest uint64 `json:"digest,string"`
}

// RankEnd is the line after the last event of a rank.
type RankEnd struct {
	Worker uint64 `json:"worker_id,string"`
	DPRank uint32 `json:"dp_rank"`
	Sum
	Groups   Sum        `json:"groups,omitzero"`    // of its cache groups besides full attention
	Position *Publisher `json:"position,omitempty"` // at the rank's moment
	Cursor   string     `json:"cursor"`             // to go on after the rank
}

// ID returns which rank it is.
func (r *RankEnd) ID() shard.RankID { return shard.RankID{Worker: r.Worker, DPRank: r.DPRank} }

// Footer is the last line.
type Footer struct {
	Ranks uint64 `json:"ranks"`
	Sum
	Groups Sum `json:"groups,omitzero"` // of ranks' cache groups besides full attention
}

// Cursor returns the cursor after a rank.
func Cursor(id shard.RankID) string { return fmt.Sprintf("%d.%d", id.Worker, id.DPRank) }

// ParseCursor reads what Cursor returned.
func ParseCursor(text string) (id shard.RankID, err error) {
	_, err = fmt.Sscanf(text, "%d.%d", &id.Worker, &id.DPRank)
	if err != nil || Cursor(id) != text {
		return shard.RankID{}, errors.New("want worker_id.dp_rank, as the line of a rank has it")
	}
	return id, nil
}

// line is any of the lines.
type line struct {
	Dump   *Header `json:"dump,omitempty"`
	Stored *stored `json:"stored,omitempty"`
	// Grouped lines have sums of their own, so that a program that knows none reads the rest.
	Grouped *grouped `json:"grouped,omitempty"`
	Rank    *RankEnd `json:"rank,omitempty"`
	End     *Footer  `json:"end,omitempty"`
}

// stored is a shard.Dumped.
type stored struct {
	Worker uint64   `json:"worker_id,string"`
	DPRank uint32   `json:"dp_rank"`
	Tier   string   `json:"tier"`
	Parent *uint64  `json:"parent,omitempty"`
	Engine []uint64 `json:"engine"`
	Local  []uint64 `json:"local,omitempty"`
	Copies []uint32 `json:"copies,omitempty"`
}

// grouped is a shard.Dumped of a cache group besides full attention.
type grouped struct {
	Worker uint64   `json:"worker_id,string"`
	DPRank uint32   `json:"dp_rank"`
	Group  uint8    `json:"cache_group"`
	Tier   string   `json:"tier"`
	Engine []uint64 `json:"engine"` // none: the rank's groups are followed, and hold nothing
	Copies []uint32 `json:"copies,omitempty"`
	// Incomplete says that the groups may hold more than is told.
	Incomplete bool `json:"incomplete,omitempty"`
}

// counter adds up what is said of a rank, and of all. It knows the places of
// the rank's hashes.
type counter struct {
	space  uint64
	seq    map[uint64]uint64 // sequence hash by engine hash
	rank   Sum
	groups Sum // of the rank
	all    Footer
}

func newCounter(sp event.Space) counter {
	return counter{space: shard.SpaceHash(sp), seq: make(map[uint64]uint64)}
}

// add counts an event.
func (c *counter) add(worker uint64, ev *event.Event, copies []uint32) error {
	if len(copies) != len(ev.Engine) || len(ev.Local) != 0 && len(ev.Local) != len(ev.Engine) {
		return fmt.Errorf("%w: %d blocks, %d hashes, %d counts", ErrDamaged, len(ev.Engine), len(ev.Local), len(copies))
	}
	if ev.Group > 0 { // whose blocks have no place
		c.groups.Events++
		for i, hash := range ev.Engine {
			if copies[i] == 0 {
				return fmt.Errorf("%w: block %d of cache group %d has no copies", ErrDamaged, hash, ev.Group)
			}
			c.groups.Blocks++
			c.groups.Digest += core.DigestTerm(c.space, worker, ev.DPRank, ev.Tier, uint32(ev.Group), hash, 0, copies[i])
		}
		return nil
	}
	above, below := uint64(0), ev.HasParent
	if below {
		var ok bool
		if above, ok = c.seq[ev.Parent]; !ok {
			return fmt.Errorf("%w: the parent %d is not before its child", ErrDamaged, ev.Parent)
		}
	}
	for i, hash := range ev.Engine {
		if len(ev.Local) > 0 {
			if l := ev.Local[i]; below {
				above = blockhash.NextSequenceHash(above, l)
			} else {
				above, below = l, true
			}
			c.seq[hash] = above
		}
		place, ok := c.seq[hash]
		if !ok {
			return fmt.Errorf("%w: nothing says where block %d is", ErrDamaged, hash)
		}
		if copies[i] > 0 {
			c.rank.Blocks++
			c.rank.Digest += core.DigestTerm(c.space, worker, ev.DPRank, ev.Tier, 0, hash, place, copies[i])
		}
	}
	c.rank.Events++
	return nil
}

// end ends a rank.
func (c *counter) end() (rank, groups Sum) {
	rank, groups = c.rank, c.groups
	c.all.Ranks++
	c.all.add(rank)
	c.all.Groups.add(groups)
	c.rank, c.groups, c.seq = Sum{}, Sum{}, make(map[uint64]uint64)
	return rank, groups
}

func (s *Sum) add(o Sum) {
	s.Events += o.Events
	s.Blocks += o.Blocks
	s.Digest += o.Digest
}
