package approx

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/shard"
)

// ErrConfig is wrapped by the errors about a Config.
var ErrConfig = errors.New("invalid setting of the approximate index")

// Config holds what a Cache is made with.
type Config struct {
	// TTL is how long a block counts as cached after its last use; 0 is 120
	// seconds.
	TTL time.Duration
	// MaxBlocks bounds the blocks over all ranks; 0 is 2^20. When there are more, with
	// each prompt some are pruned until they are PruneTarget of it, 0 to 1; 0 is 0.8.
	MaxBlocks   int
	PruneTarget float64
	// Now is the clock, of which only what elapses counts; nil is time.Now.
	Now func() time.Time
}

// Stats counts what a Cache did.
type Stats struct {
	Blocks  int    // held now
	Placed  uint64 // prompts noted
	Expired uint64 // blocks whose time was over
	Pruned  uint64 // blocks that made room
}

// Cache is an index of guesses: a route.Guesses. Its methods are safe for concurrent use.
type Cache struct {
	cfg   Config
	begun time.Time

	mu struct {
		sync.Mutex
		held
		// pruning is from when there were more than MaxBlocks until they are PruneTarget of it.
		pruning bool
		stats   Stats
		path    []uint32 // Placed's, of runs
	}
}

// New returns an empty Cache. The error wraps ErrConfig.
func New(cfg Config) (*Cache, error) {
	if cfg.TTL == 0 {
		cfg.TTL = 120 * time.Second
	}
	if cfg.MaxBlocks == 0 {
		cfg.MaxBlocks = 1 << 20
	}
	if cfg.PruneTarget == 0 {
		cfg.PruneTarget = 0.8
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.TTL < 0 || cfg.MaxBlocks < 0 || !(cfg.PruneTarget > 0 && cfg.PruneTarget <= 1) {
		return nil, fmt.Errorf("%w: time to live %v, %d blocks, prune target %v: give positive ones, the target at most 1", ErrConfig, cfg.TTL, cfg.MaxBlocks, cfg.PruneTarget)
	}
	c := &Cache{cfg: cfg, begun: cfg.Now()}
	c.mu.held = newHeld()
	return c, nil
}

// elapsed returns the time since the Cache was made.
func (c *Cache) elapsed() time.Duration { return c.cfg.Now().Sub(c.begun) }

// Find calls each for every rank that is taken to hold the first block, with how many leading
// blocks it is taken to hold. The Cache's lock is held meanwhile.
func (c *Cache) Find(local []uint64, each func(id shard.RankID, blocks uint32)) {
	now := c.elapsed()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(now)
	c.mu.find(local, each)
}

// EachRank calls f for every rank that is taken to hold blocks, with how many. The Cache's lock is
// held meanwhile.
func (c *Cache) EachRank(f func(id shard.RankID, blocks int)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, slot := range c.mu.slots {
		f(id, c.mu.ranks.At(slot).blocks)
	}
}

// Placed notes that a prompt of these local hashes went to a rank.
func (c *Cache) Placed(id shard.RankID, local []uint64) {
	if len(local) == 0 {
		return
	}
	now := c.elapsed()
	c.mu.Lock()
	defer c.mu.Unlock()
	now = max(now, c.mu.runs.At(c.mu.newest()).used) // who was first at the clock need not be at the lock
	c.mu.stats.Placed++
	before := c.mu.blocks
	c.mu.path = c.mu.walk(c.mu.path[:0], id, local)
	for _, at := range slices.Backward(c.mu.path) { // so that tails are the older
		c.mu.renew(at, now)
	}
	c.prune(c.mu.blocks - before)
}

// pruneStep is how many blocks make room at once, beside twice as many as came: all that are
// to go at a full index are hundreds of thousands, for which every request would wait. With a
// thousand each for a while one of a hundred requests did, with all others behind it.
const pruneStep = 64

// prune makes room by a step, after so many blocks were added, from when there are too
// many until there are as few as there are to be. c.mu is held.
func (c *Cache) prune(added int) {
	target := int(float64(c.cfg.MaxBlocks) * c.cfg.PruneTarget)
	if c.mu.pruning = c.mu.pruning || c.mu.blocks > c.cfg.MaxBlocks; !c.mu.pruning {
		return
	}
	for n, left := 1, 2*added+pruneStep; left > 0 && c.mu.blocks > target; n++ {
		gone := min(left, c.mu.blocks-target, int(c.mu.runs.At(c.mu.oldest()).blocks))
		c.mu.take(c.mu.oldest(), uint32(gone))
		c.mu.stats.Pruned += uint64(gone)
		left -= gone
		c.pause(n)
	}
	c.mu.pruning = c.mu.blocks > target
}

// heldRuns is how many runs at most are dropped before others may have the lock.
const heldRuns = 64

// pause lets others have the lock after each heldRuns of n. c.mu is held.
func (c *Cache) pause(n int) {
	if n%heldRuns == 0 {
		c.mu.Unlock()
		c.mu.Lock()
	}
}

// Expire drops the blocks whose time is over. Find does it too.
func (c *Cache) Expire() {
	now := c.elapsed()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(now)
}

// expire is Expire. c.mu is held, but for pauses: all that was to go is gone when it returns.
func (c *Cache) expire(now time.Duration) {
	for n := 1; c.mu.oldest() != none && now-c.mu.runs.At(c.mu.oldest()).used > c.cfg.TTL; n++ {
		at := c.mu.oldest()
		blocks := c.mu.runs.At(at).blocks
		c.mu.take(at, blocks)
		c.mu.stats.Expired += uint64(blocks)
		c.pause(n)
	}
}

// RemoveWorker forgets what a worker is taken to hold.
func (c *Cache) RemoveWorker(worker uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []shard.RankID
	for id := range c.mu.slots {
		if id.Worker == worker {
			ids = append(ids, id)
		}
	}
	n := 0
	for _, id := range ids {
		for slot, ok := c.mu.slots[id]; ok; slot, ok = c.mu.slots[id] {
			at := c.mu.ends(slot).own.next
			c.mu.take(at, c.mu.runs.At(at).blocks)
			n++
			c.pause(n)
		}
	}
}

// Stats returns what the Cache did.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.stats.Blocks = c.mu.blocks
	return c.mu.stats
}

// Ranks returns the ranks that are taken to hold blocks, sorted by worker and rank.
func (c *Cache) Ranks() (stats []shard.RankStat) {
	c.EachRank(func(id shard.RankID, blocks int) {
		st := shard.RankStat{RankID: id}
		st.Held[0] = blocks
		stats = append(stats, st)
	})
	slices.SortFunc(stats, func(a, b shard.RankStat) int { return a.RankID.Compare(b.RankID) })
	return stats
}
