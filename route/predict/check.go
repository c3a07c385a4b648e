package predict

import (
	"cmp"
	"slices"
	"sync"

	"github.com/kvatlas/kvatlas/shard"
)

// Config holds the settings of a Check. BlockSize must be set.
type Config struct {
	BlockSize int // tokens
	// Window is about how many requests with anything cached, by prediction or
	// report, are judged together; 0 is 64. No rank is judged before as many.
	Window int
	// Limit is the error from which on predictions are wrong: the tokens that
	// were predicted or reported but not both, as a part of those that were
	// either. 0 is 0.5. They are right again below half of it.
	Limit float64
	// MaxRanks bounds the ranks that are kept; 0 is 65,536. Others are not
	// judged.
	MaxRanks int
}

// Verdict is what one observation changed.
type Verdict uint8

// The verdicts.
const (
	Same Verdict = iota
	TurnedWrong
	TurnedRight
)

// Stat is the record of one rank.
type Stat struct {
	shard.RankID
	Requests  uint64 // observed
	Predicted uint64 // tokens expected to be cached, over all requests
	Reported  uint64 // tokens that the engine found cached
	Over      uint64 // tokens predicted beyond the reported ones
	Under     uint64 // tokens reported beyond the predicted ones
	Error     float64
	Wrong     bool
}

// Check keeps the record of every rank. Its methods are safe for concurrent
// use.
type Check struct {
	cfg Config

	mu struct {
		sync.Mutex
		ranks   map[shard.RankID]*record
		refused uint64
	}
}

type record struct {
	Stat
	seen      int     // requests with anything cached
	off, both float64 // tokens, each request counting less as others follow
}

// New returns an empty Check.
func New(cfg Config) *Check {
	if cfg.Window <= 0 {
		cfg.Window = 64
	}
	if cfg.Limit <= 0 {
		cfg.Limit = 0.5
	}
	if cfg.MaxRanks <= 0 {
		cfg.MaxRanks = 1 << 16
	}
	c := &Check{cfg: cfg}
	c.mu.ranks = make(map[shard.RankID]*record)
	return c
}

// Observe records one request: the tokens that were predicted to be cached
// where it was sent, and those that the engine reports. The verdict is for a
// log line; the state is in Stats.
func (c *Check) Observe(rank shard.RankID, predicted, reported int) Verdict {
	predicted, reported = max(predicted, 0), max(reported, 0)
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.mu.ranks[rank]
	if r == nil {
		if len(c.mu.ranks) >= c.cfg.MaxRanks {
			c.mu.refused++
			return Same
		}
		r = &record{Stat: Stat{RankID: rank}}
		c.mu.ranks[rank] = r
	}
	r.Requests++
	r.Predicted += uint64(predicted)
	r.Reported += uint64(reported)
	r.Over += uint64(max(predicted-reported, 0))
	r.Under += uint64(max(reported-predicted, 0))
	if predicted == 0 && reported == 0 {
		return Same
	}
	off := max(predicted-reported, reported-predicted)
	if off <= c.cfg.BlockSize {
		off = 0
	}
	keep := 1 - 1/float64(c.cfg.Window)
	r.seen++
	r.off = r.off*keep + float64(off)
	r.both = r.both*keep + float64(max(predicted, reported))
	r.Error = r.off / r.both
	switch {
	case r.seen < c.cfg.Window:
	case !r.Wrong && r.Error > c.cfg.Limit:
		r.Wrong = true
		return TurnedWrong
	case r.Wrong && r.Error < c.cfg.Limit/2:
		r.Wrong = false
		return TurnedRight
	}
	return Same
}

// Forget drops the records of a worker that is gone or has restarted.
func (c *Check) Forget(worker uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.mu.ranks {
		if id.Worker == worker {
			delete(c.mu.ranks, id)
		}
	}
}

// Stats returns the record of every rank, sorted by worker and rank.
func (c *Check) Stats() []Stat {
	c.mu.Lock()
	defer c.mu.Unlock()
	stats := make([]Stat, 0, len(c.mu.ranks))
	for _, r := range c.mu.ranks {
		stats = append(stats, r.Stat)
	}
	slices.SortFunc(stats, func(a, b Stat) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.DPRank, b.DPRank))
	})
	return stats
}

// Refused returns how many observations were not kept, for MaxRanks.
func (c *Check) Refused() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.refused
}
