package approx

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
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
	Failed  uint64 // prompts and removals that the space refused
}

// Cache is an index of guesses. It is a route.Index, and a route.Learner. Its
// methods are safe for concurrent use.
type Cache struct {
	cfg    Config
	begun  time.Time
	expiry atomic.Int64 // when the oldest block's time is over, in the list and in the open bundle, in ns since begun
	// last is what was noted last. Placed replaces it, with mu held.
	last atomic.Pointer[noted]

	mu struct {
		sync.Mutex
		at     map[uint64]*run // by run.key
		list   run             // the beginning and end of all, by last use
		blocks int             // of all
		// pruning is from when there were more than MaxBlocks until they are PruneTarget of it.
		pruning bool
		stats   Stats
		open    *bundle // what the space is yet to be given; nil without
	}
}

// rooms are for the hashes of prompts.
var rooms = sync.Pool{New: func() any { return new([]uint64) }}

// noted is a prompt on its way into the space.
type noted struct {
	bundle *bundle
	before *noted // noted before, and not in the space by then: shards do not wait for each other
	// What is new of it begins with this block, as its at-th.
	at    int
	first uint64
}

// in reports whether it may tell something of a prompt. The blocks before it need not be
// looked at: who shares none of what is new shares nothing.
func (n *noted) in(local []uint64) bool { return n.at < len(local) && local[n.at] == n.first }

// outstanding returns the last of them that the space does not have yet; nil if it has all.
func (n *noted) outstanding() *noted {
	for ; n != nil; n = n.before {
		if !n.bundle.in() {
			return n
		}
	}
	return nil
}

// rest returns those that the space does not have yet in a list of their own: where it has never
// all that was noted, the others would stay behind them without end.
func (n *noted) rest() (list *noted) {
	end := &list
	for n = n.outstanding(); n != nil; n = n.before.outstanding() {
		*end = &noted{bundle: n.bundle, at: n.at, first: n.first}
		end = &(*end).before
	}
	return list
}

// run is blocks of a rank that follow each other and were last used together. What
// follows it is other runs: prompts that share their beginning share its runs, so that
// each costs as many steps as it has partings and not as it has blocks.
type run struct {
	rank   shard.RankID
	seq    []uint64      // sequence hashes; each says what all before it are
	used   time.Duration // since the Cache's begun: whoever sets the clock ages nothing
	parent *run

	prev, next *run // by last use: a run after all that follow it in prompts
}

// key names a run by its first block and its rank in one word, as maps of words are much
// the faster. Whoever finds another run so once in 2^32 takes it for none.
func (r *run) key() uint64 { return r.seq[0] ^ rankKey(r.rank) }

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
	c.mu.at = make(map[uint64]*run)
	c.mu.list.prev, c.mu.list.next = &c.mu.list, &c.mu.list
}

// elapsed returns the time since the Cache was made.
func (c *Cache) elapsed() time.Duration { return c.cfg.Now().Sub(c.begun) }

// Find puts into r what every rank is taken to hold; see shard.Space.Find. It is with all
// prompts that were noted before, and waits for the space to have those of them that go on
// as this one does.
func (c *Cache) Find(local []uint64, r *shard.Result) {
	c.Expire()
	for n := c.last.Load().outstanding(); n != nil; n = n.before {
		if n.in(local) {
			c.wait(n.bundle)
		}
	}
	c.cfg.Space.Find(local, r)
}

// EachMember calls f for every rank that is taken to hold blocks.
func (c *Cache) EachMember(f func(k shard.Member)) { c.cfg.Space.EachMember(f) }

// Placed notes that a prompt of these local hashes went to a rank. It does not wait for
// the space's owners, as all who choose would wait with it, for the lock: who looks
// prompts up next does, and has seldom to.
func (c *Cache) Placed(id shard.RankID, local []uint64) {
	if len(local) == 0 {
		return
	}
	now := c.elapsed()
	room := rooms.Get().(*[]uint64) //nolint:forcetypeassert // the pool holds nothing else
	defer rooms.Put(room)
	hashes := blockhash.SequenceHashes((*room)[:0], local)
	*room = hashes
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.stats.Placed++
	last, known := c.walk(id, hashes)
	if known < len(hashes) {
		r := &run{rank: id, seq: slices.Clone(hashes[known:]), parent: last} // nobody writes to seq's elements again
		ev := event.Event{Kind: event.Stored, DPRank: id.DPRank, Engine: r.seq, Local: slices.Clone(local[known:])}
		if known > 0 {
			ev.HasParent, ev.Parent = true, hashes[known-1]
		}
		before, b := c.last.Load().outstanding(), c.add(id, ev)
		if before != nil && before.bundle != b {
			before = before.rest()
		}
		c.last.Store(&noted{b, before, known, local[known]})
		c.mu.at[r.key()] = r
		c.mu.blocks += len(r.seq)
		last = r
	}
	for r := last; r != nil; r = r.parent { // so that tails are the older
		r.unlist()
		r.used = now
		r.list(c.mu.list.prev)
	}
	c.prune(len(hashes) - known)
	c.noteExpiry()
	if b := c.mu.open; b != nil && b.prompts == bundleMost {
		c.give()
	}
}

// pruneStep is how many blocks make room at once, beside twice as many as came: all that are
// to go at a full index are hundreds of thousands, for which every request would wait. With a
// thousand each for a while one of a hundred requests did, with all others behind it.
const pruneStep = 64

// prune makes room by a step, after so many blocks were added, from when there are too
// many until there are as few as there are to be.
func (c *Cache) prune(added int) {
	target := int(float64(c.cfg.MaxBlocks) * c.cfg.PruneTarget)
	if c.mu.pruning = c.mu.pruning || c.mu.blocks > c.cfg.MaxBlocks; !c.mu.pruning {
		return
	}
	least := max(target, c.mu.blocks-2*added-pruneStep)
	n := c.drop(func(*run) bool { return c.mu.blocks > least })
	c.mu.stats.Pruned += uint64(n)
	c.mu.pruning = c.mu.blocks > target
}

// walk follows a prompt through the runs of a rank and returns the last one, and how
// many blocks it has until its end. Where the prompt leaves a run, or ends in it, that is
// parted: what is before is used now, and what is behind is not.
func (c *Cache) walk(id shard.RankID, hashes []uint64) (last *run, known int) {
	mix := rankKey(id)
	for known < len(hashes) {
		r := c.mu.at[hashes[known]^mix]
		if r == nil || r.rank != id || r.seq[0] != hashes[known] || r.parent != last {
			break
		}
		n := min(len(r.seq), len(hashes)-known)
		if rest := hashes[known:]; r.seq[n-1] != rest[n-1] {
			n = sort.Search(n, func(i int) bool { return r.seq[i] != rest[i] })
		}
		if known += n; n < len(r.seq) {
			r = c.part(r, n)
		}
		last = r
	}
	return last, known
}

// part makes the first n blocks of a run one of their own and returns it.
func (c *Cache) part(r *run, n int) *run {
	head := &run{rank: r.rank, seq: r.seq[:n:n], used: r.used, parent: r.parent}
	c.mu.at[r.key()] = head
	r.seq, r.parent = r.seq[n:], head
	c.mu.at[r.key()] = r
	head.list(r)
	return head
}

// list puts the run into the list behind another.
func (r *run) list(before *run) {
	r.prev, r.next = before, before.next
	before.next.prev, before.next = r, r
}

// unlist takes the run out of the list, if it is in it.
func (r *run) unlist() {
	if r.next != nil {
		r.prev.next, r.next.prev = r.next, r.prev
		r.prev, r.next = nil, nil
	}
}

// Expire drops the blocks whose time is over. Find does it too.
func (c *Cache) Expire() {
	now := c.elapsed()
	if int64(now) <= c.expiry.Load() {
		return
	}
	if b := c.expire(now); b != nil {
		c.wait(b)
	}
}

// expire drops them, and gives the space what it is to hold no more; it returns what is to be waited
// for, without the lock, or nil.
func (c *Cache) expire(now time.Duration) *bundle {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.drop(func(r *run) bool { return now-r.used > c.cfg.TTL })
	c.mu.stats.Expired += uint64(n)
	b := c.mu.open
	if b != nil && int64(now) > b.expiry {
		c.give()
	} else {
		b = nil
	}
	c.noteExpiry()
	return b
}

// drop takes blocks off the end of the run used least recently, and then of the next,
// while more says so, and returns how many. They leave the space with the open bundle: until then
// a look-up may still find them.
func (c *Cache) drop(more func(oldest *run) bool) (n int) {
	for r := c.mu.list.next; r != &c.mu.list && more(r); r = c.mu.list.next {
		left, ev := len(r.seq), c.removed(r)
		for ; left > 0 && more(r); left-- {
			ev.Engine = append(ev.Engine, r.seq[left-1])
			c.mu.blocks--
			n++
		}
		if left == 0 {
			c.forget(r)
		}
		r.seq = r.seq[:left]
	}
	if c.mu.blocks == 0 {
		c.reset()
	}
	return n
}

// forget takes out a run that nothing follows.
func (c *Cache) forget(r *run) {
	if r.unlist(); c.mu.at[r.key()] == r {
		delete(c.mu.at, r.key())
	}
}

func (c *Cache) noteExpiry() {
	expiry := int64(math.MaxInt64)
	if c.mu.blocks > 0 {
		expiry = int64(c.mu.list.next.used + c.cfg.TTL)
	}
	if c.mu.open != nil {
		expiry = min(expiry, c.mu.open.expiry)
	}
	c.expiry.Store(expiry)
}

// RemoveWorker forgets what a worker is taken to hold. ctx bounds the wait for
// room in the space's queue.
func (c *Cache) RemoveWorker(ctx context.Context, worker uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.give()
	if err := c.cfg.Space.RemoveWorker(ctx, worker); err != nil {
		return fmt.Errorf("removing worker %d: %w", worker, err)
	}
	for r := c.mu.list.next; r != &c.mu.list; {
		next := r.next
		if r.rank.Worker == worker {
			c.mu.blocks -= len(r.seq)
			c.forget(r)
		}
		r = next
	}
	if c.mu.blocks == 0 {
		c.reset()
	}
	c.noteExpiry()
	return nil
}

// Stats returns what the Cache did.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.stats.Blocks = c.mu.blocks
	return c.mu.stats
}

// Ranks returns the ranks that are taken to hold blocks; see shard.Space.Ranks.
func (c *Cache) Ranks() []shard.RankStat {
	c.giveAll()
	return c.cfg.Space.Ranks()
}

// DumpRank returns what a rank is taken to hold; see shard.Space.DumpRank.
func (c *Cache) DumpRank(ctx context.Context, id shard.RankID) ([]shard.Dumped, error) {
	c.giveAll()
	return c.cfg.Space.DumpRank(ctx, id)
}
