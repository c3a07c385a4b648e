package approx

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// ErrConfig is wrapped by the errors about a Config.
var ErrConfig = errors.New("invalid setting of the approximate index")

// Config holds what a Cache is made with. Space must be set, empty, and
// nobody else's to write to.
type Config struct {
	Space *shard.Space
	// TTL is how long a block counts as cached after its last use; 0 is 120
	// seconds.
	TTL time.Duration
	// MaxBlocks bounds the blocks over all ranks; 0 is 2^20. When there are
	// more they are pruned to PruneTarget of it, 0 to 1; 0 is 0.8.
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
	Failed  uint64 // prompts and removals that the space refused
}

// Cache is an index of guesses. It is a route.Index, and a route.Learner. Its
// methods are safe for concurrent use.
type Cache struct {
	cfg    Config
	begun  time.Time
	expiry atomic.Int64 // when the oldest block's time is over, in ns since begun

	mu struct {
		sync.Mutex
		at     map[uint64]uint32 // into blocks, by block.key
		block  []block           // block[0] is the list's end and beginning
		free   []uint32
		hashes []uint64 // scratch
		stats  Stats
	}
}

// block is one of a rank's blocks in the list by last use.
type block struct {
	rank       shard.RankID
	seq        uint64
	used       time.Duration // since the Cache's begun: whoever sets the clock ages nothing
	prev, next uint32
}

// key names a block of a rank in one word, as maps of words are much the faster.
// Two blocks of 2^32 share a key once in a run like this; they then count as one.
func (b *block) key() uint64 { return b.seq ^ rankKey(b.rank) }

func rankKey(id shard.RankID) uint64 {
	return (id.Worker*0x9e3779b97f4a7c15 + uint64(id.DPRank) + 1) * 0xd6e8feb86659fd93
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
	switch {
	case cfg.Space == nil:
		return nil, fmt.Errorf("%w: no space", ErrConfig)
	case cfg.TTL < 0 || cfg.MaxBlocks < 0 || !(cfg.PruneTarget > 0 && cfg.PruneTarget <= 1):
		return nil, fmt.Errorf("%w: time to live %v, %d blocks, prune target %v: give positive ones, the target at most 1", ErrConfig, cfg.TTL, cfg.MaxBlocks, cfg.PruneTarget)
	}
	c := &Cache{cfg: cfg, begun: cfg.Now()}
	c.expiry.Store(math.MaxInt64)
	c.reset()
	return c, nil
}

func (c *Cache) reset() {
	c.mu.at, c.mu.block, c.mu.free = make(map[uint64]uint32), make([]block, 1), nil
}

// elapsed returns the time since the Cache was made.
func (c *Cache) elapsed() time.Duration { return c.cfg.Now().Sub(c.begun) }

// Find puts into r what every rank is taken to hold; see shard.Space.Find.
func (c *Cache) Find(local []uint64, r *shard.Result) {
	c.Expire()
	c.cfg.Space.Find(local, r)
}

// EachMember calls f for every rank that is taken to hold blocks.
func (c *Cache) EachMember(f func(k shard.Member)) { c.cfg.Space.EachMember(f) }

// Placed notes that a prompt of these local hashes went to a rank.
func (c *Cache) Placed(id shard.RankID, local []uint64) {
	if len(local) == 0 {
		return
	}
	now := c.elapsed()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.stats.Placed++
	c.mu.hashes = blockhash.SequenceHashes(c.mu.hashes[:0], local)
	hashes, mix := c.mu.hashes, rankKey(id)
	// A rank that holds a block holds all before it: blocks are used from the last
	// to the first, and go in the order of use.
	known := sort.Search(len(hashes), func(i int) bool { _, ok := c.mu.at[hashes[i]^mix]; return !ok })
	if known < len(hashes) {
		ev := event.Event{Kind: event.Stored, DPRank: id.DPRank, Engine: hashes[known:], Local: local[known:]}
		if known > 0 {
			ev.HasParent, ev.Parent = true, hashes[known-1]
		}
		b := &event.Batch{Space: c.cfg.Space.Key(), Worker: id.Worker, Events: []event.Event{ev}}
		if _, err := c.cfg.Space.ApplyWait(context.Background(), b); err != nil {
			c.mu.stats.Failed++
			return
		}
	}
	for i := len(hashes) - 1; i >= 0; i-- { // so that tails are the older
		c.use(id, hashes[i], mix, now)
	}
	if len(c.mu.at) > c.cfg.MaxBlocks {
		target := int(float64(c.cfg.MaxBlocks) * c.cfg.PruneTarget)
		c.mu.stats.Pruned += uint64(c.drop(func(*block) bool { return len(c.mu.at) > target }))
	}
	c.noteExpiry()
}

// use moves a block to the end of the list, made if absent. mix is the rank's key.
func (c *Cache) use(id shard.RankID, seq, mix uint64, now time.Duration) {
	i, ok := c.mu.at[seq^mix]
	if ok {
		c.unlist(i)
	} else {
		if n := len(c.mu.free); n > 0 {
			i, c.mu.free = c.mu.free[n-1], c.mu.free[:n-1]
		} else {
			i = uint32(len(c.mu.block))
			c.mu.block = append(c.mu.block, block{})
		}
		c.mu.at[seq^mix] = i
	}
	last := c.mu.block[0].prev
	c.mu.block[i] = block{rank: id, seq: seq, used: now, prev: last}
	c.mu.block[last].next, c.mu.block[0].prev = i, i
}

func (c *Cache) unlist(i uint32) {
	b := c.mu.block[i]
	c.mu.block[b.prev].next, c.mu.block[b.next].prev = b.next, b.prev
}

// Expire drops the blocks whose time is over. Find does it too.
func (c *Cache) Expire() {
	now := c.elapsed()
	if int64(now) <= c.expiry.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.stats.Expired += uint64(c.drop(func(b *block) bool { return now-b.used > c.cfg.TTL }))
	c.noteExpiry()
}

// drop takes blocks off the front of the list while more says so, and returns
// how many.
func (c *Cache) drop(more func(oldest *block) bool) (n int) {
	gone := map[shard.RankID][]uint64{}
	for len(c.mu.at) > 0 {
		i := c.mu.block[0].next
		b := &c.mu.block[i]
		if !more(b) {
			break
		}
		gone[b.rank] = append(gone[b.rank], b.seq)
		c.unlist(i)
		delete(c.mu.at, b.key())
		c.mu.free = append(c.mu.free, i)
		n++
	}
	for id, hashes := range gone {
		b := &event.Batch{Space: c.cfg.Space.Key(), Worker: id.Worker, Events: []event.Event{
			{Kind: event.Removed, DPRank: id.DPRank, Engine: hashes},
		}}
		if _, err := c.cfg.Space.ApplyWait(context.Background(), b); err != nil {
			c.mu.stats.Failed++
		}
	}
	if len(c.mu.at) == 0 {
		c.reset()
	}
	return n
}

func (c *Cache) noteExpiry() {
	expiry := int64(math.MaxInt64)
	if len(c.mu.at) > 0 {
		expiry = int64(c.mu.block[c.mu.block[0].next].used + c.cfg.TTL)
	}
	c.expiry.Store(expiry)
}

// RemoveWorker forgets what a worker is taken to hold. ctx bounds the wait for
// room in the space's queue.
func (c *Cache) RemoveWorker(ctx context.Context, worker uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.cfg.Space.RemoveWorker(ctx, worker); err != nil {
		return fmt.Errorf("removing worker %d: %w", worker, err)
	}
	for k, i := range c.mu.at {
		if c.mu.block[i].rank.Worker == worker {
			c.unlist(i)
			delete(c.mu.at, k)
			c.mu.free = append(c.mu.free, i)
		}
	}
	if len(c.mu.at) == 0 {
		c.reset()
	}
	c.noteExpiry()
	return nil
}

// Stats returns what the Cache did.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.stats.Blocks = len(c.mu.at)
	return c.mu.stats
}

// Ranks returns the ranks that are taken to hold blocks; see shard.Space.Ranks.
func (c *Cache) Ranks() []shard.RankStat { return c.cfg.Space.Ranks() }

// DumpRank returns what a rank is taken to hold; see shard.Space.DumpRank.
func (c *Cache) DumpRank(ctx context.Context, id shard.RankID) ([]shard.Dumped, error) {
	return c.cfg.Space.DumpRank(ctx, id)
}
