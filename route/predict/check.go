package predict

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v3"

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
	cfg     Config
	ranks   *xsync.MapOf[shard.RankID, *record]
	kept    atomic.Int64 // ranks, or more while one is refused
	refused *xsync.Counter
}

type record struct {
	mu sync.Mutex // of all below
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
	return &Check{cfg: cfg, ranks: xsync.NewMapOf[shard.RankID, *record](), refused: xsync.NewCounter()}
}

// Observe records one request: the tokens that were predicted to be cached
// where it was sent, and those that the engine reports. The verdict is for a
// log line; the state is in Stats.
func (c *Check) Observe(rank shard.RankID, predicted, reported int) Verdict {
	predicted, reported = max(predicted, 0), max(reported, 0)
	r := c.record(rank)
	if r == nil {
		c.refused.Inc()
		return Same
	}
	r.mu.Lock()
	defer r.mu.Unlock()
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

// record returns the record of a rank, made if there is room; else nil.
func (c *Check) record(rank shard.RankID) *record {
	if r, ok := c.ranks.Load(rank); ok {
		return r
	}
	r, _ := c.ranks.LoadOrTryCompute(rank, func() (r *record, full bool) {
		if c.kept.Add(1) > int64(c.cfg.MaxRanks) {
			c.kept.Add(-1)
			return nil, true
		}
		return &record{Stat: Stat{RankID: rank}}, false
	})
	return r
}

// Forget drops the records of a worker that is gone or has restarted.
func (c *Check) Forget(worker uint64) {
	for id := range c.ranks.Range {
		if id.Worker == worker {
			if _, there := c.ranks.LoadAndDelete(id); there {
				c.kept.Add(-1)
			}
		}
	}
}

// Stats returns the record of every rank, sorted by worker and rank.
func (c *Check) Stats() []Stat {
	var stats []Stat
	for _, r := range c.ranks.Range {
		r.mu.Lock()
		stats = append(stats, r.Stat)
		r.mu.Unlock()
	}
	slices.SortFunc(stats, func(a, b Stat) int { return a.RankID.Compare(b.RankID) })
	return stats
}

// Refused returns how many observations were not kept, for MaxRanks.
func (c *Check) Refused() uint64 {
	return uint64(c.refused.Value())
}
