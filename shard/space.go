package shard

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v3"
	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// Space is the index of one space. Its methods are safe for concurrent use.
type Space struct {
	key      event.Space
	hashKey  core.Key
	maxRanks int
	scheme   func(worker uint64) string
	shards   []*owner
	owners   sync.WaitGroup
	inline   bool // see Config
	table    *table
	tasks    sync.Pool // of *task

	// slots holds one token for each accepted task that some shard has not
	// finished. A token is taken before a task is queued, and every queue has
	// room for as many tasks as there are tokens: queueing never blocks.
	slots chan struct{}
	// owed is how many of the tokens are of tasks that are finished: see
	// giveBack.
	owed atomic.Int64

	cutting  atomic.Bool // a cut is under way
	eagle    atomic.Bool // see Eagle
	hybrid   atomic.Bool // see Hybrid
	clears   clears
	dumpStep int         // how many blocks owners copy at a time for a dump
	grouped  atomic.Bool // some worker has cache groups that are told apart
	models   *xsync.MapOf[uint64, *cacheModel]

	mu struct { // guards the order of tasks, the table's writes and early
		sync.Mutex
		closed bool
	}
	early early

	totals struct {
		sync.Mutex
		batches uint64
		outcome core.Outcome
	}
}

func newSpace(key event.Space, cfg Config, l *ledger) *Space {
	s := &Space{
		key:      key,
		hashKey:  cfg.Key,
		maxRanks: cfg.MaxRanks,
		inline:   cfg.Inline,
		clears:   cfg.clears,
		dumpStep: cfg.dumpStep,
		table:    newTable(),
		models:   xsync.NewMapOf[uint64, *cacheModel](),
		slots:    make(chan struct{}, cfg.Queue),
	}
	s.scheme = func(worker uint64) string {
		if cfg.EngineScheme == nil {
			return ""
		}
		return cfg.EngineScheme(key, worker)
	}
	s.tasks.New = func() any { return newTask(cfg.Shards) }
	for i := range cfg.Shards {
		o := &owner{space: s, number: i, queue: make(chan *task, cfg.Queue)}
		o.account.ledger = l
		o.index = o.account.newIndex(cfg)
		o.account.recompute(o.index)
		o.prefetch, _ = o.index.(core.Prefetcher)
		s.shards = append(s.shards, o)
	}
	for _, o := range s.shards {
		if !s.inline {
			s.owners.Go(o.run)
		}
	}
	return s
}

// close lets the owners stop once they have applied what is queued.
func (s *Space) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return
	}
	s.mu.closed = true
	for _, o := range s.shards {
		close(o.queue)
	}
}

// Key returns which space it is.
func (s *Space) Key() event.Space { return s.key }

// Eagle reports whether blocks of the space may be hashed with the token after each
// (blockhash.Options.Eagle): a prompt's tokens are to be looked up in both ways then, as
// workers of one space may differ.
func (s *Space) Eagle() bool { return s.eagle.Load() }

// MarkEagle has Eagle say so from now on.
func (s *Space) MarkEagle() {
	if !s.eagle.Load() { // a lookup reads it
		s.eagle.Store(true)
	}
}

// Hybrid reports whether the model of some worker has caches besides full attention. Depths
// may be upper bounds then: Result.Exact says of each answer whether they are not.
func (s *Space) Hybrid() bool { return s.hybrid.Load() }

// MarkHybrid has Hybrid say so from now on.
func (s *Space) MarkHybrid() {
	if !s.hybrid.Load() { // a lookup reads it
		s.hybrid.Store(true)
	}
}

// shardOf returns the shard of the chains that begin with the local hash.
func (s *Space) shardOf(first uint64) int {
	if len(s.shards) == 1 {
		return 0 // whatever first is: a lookup need not wait for its prompt to arrive from memory
	}
	// The multiplication mixes, so that any set of first blocks spreads; its
	// high bits, scaled to the number of shards, choose.
	hi, _ := bits.Mul64(first*0x9E3779B97F4A7C15, uint64(len(s.shards)))
	return int(hi)
}

// Apply hands b to the owners and returns; done, if not nil, is called once
// all of it is applied, from an owner goroutine, and must not block. b and its
// slices must not change until then. Batches of one caller are applied in the
// order of its calls.
//
// With as many batches waiting as Config.Queue says, Apply blocks. If it
// returns an error, nothing of b is applied and done is not called.
func (s *Space) Apply(ctx context.Context, b *event.Batch, done func(core.Outcome)) error {
	if b.Space != s.key {
		return fmt.Errorf("applying a batch of model %q, block size %d, group %q: %w", b.Space.Model, b.Space.BlockSize, b.Space.Group, ErrOtherSpace)
	}
	scheme := s.schemeOf(b)
	if b.Eagle {
		s.MarkEagle()
	}
	if b.Hybrid {
		s.MarkHybrid()
	}
	made, err := s.tablesFor(ctx, b)
	if err != nil {
		return err
	}
	return s.submit(ctx, func(t *task) {
		t.batch, t.done, t.scheme = b, done, scheme
		s.attribute(t)
		t.outs[0].Refused += s.findMembers(t)
		for _, m := range t.members {
			if m == nil || m.groups.Load() != nil {
				continue
			}
			if g, ok := made[m.id.DPRank]; ok {
				m.giveMade(g)
			}
		}
		s.reach(t)
	})
}

// schemeOf returns the hash scheme of the batch's worker if the batch has
// hash-only events: all shards must take it as the same.
func (s *Space) schemeOf(b *event.Batch) string {
	asked := s.table.pooled.Load() // what goes to a pool is by hash
	for i := 0; i < len(b.Events) && !asked; i++ {
		asked = hashOnly(&b.Events[i])
	}
	if !asked {
		return ""
	}
	return s.scheme(b.Worker)
}

// findMembers finds the member of each event, made if the event stores blocks, and
// returns how many blocks it refuses because there are too many ranks.
func (s *Space) findMembers(t *task) (refused int) {
	var m *member
	for i := range t.batch.Events {
		ev := &t.batch.Events[i]
		id := RankID{t.batch.Worker, ev.DPRank}
		if t.ofPool(i) {
			t.pooled[i].announcer = s.table.find(id)
			id = t.pooled[i].pool.id
		}
		if m == nil || m.id != id {
			m = s.table.find(id)
		}
		if ev.DPRank == event.PoolRank { // of no worker
			if ev.Kind == event.Stored {
				refused += len(ev.Engine)
			}
			t.members = append(t.members, nil)
			continue
		}
		if m == nil && ev.Kind == event.Stored {
			if s.table.count.Load() < int64(s.maxRanks) {
				m = s.table.add(id, len(s.shards))
			} else {
				refused += len(ev.Engine)
			}
		}
		t.members = append(t.members, m)
		if m != nil && ev.Group == 0 && !t.ofPool(i) {
			s.note(t, i, m)
		}
	}
	return refused
}

// reach notes which shards the batch's events may bring blocks of their ranks to,
// and has the batch go to all that they ever may have been brought to.
func (s *Space) reach(t *task) {
	clear(t.reach)
	for i, m := range t.members {
		if m == nil {
			continue
		}
		switch ev := &t.batch.Events[i]; {
		case ev.Kind != event.Stored || ev.Group > 0:
		case ev.Incomplete && ev.HasParent || hashOnly(ev) && t.asksOthers():
			m.reachAll() // it may be wherever others of the hash scheme have it
		case !ev.HasParent && len(ev.Local) > 0:
			m.reached[s.shardOf(ev.Local[0])] = true
		}
		if i+1 < len(t.members) && t.members[i+1] == m {
			continue
		}
		for j, reached := range m.reached {
			t.reach[j] = t.reach[j] || reached
		}
	}
	for i, o := range s.shards {
		if t.reach[i] || len(t.cleared) > 0 { // all shards call the rank otherwise from then on
			t.to = append(t.to, o)
		}
	}
	if len(t.to) == 0 {
		t.to = append(t.to, s.shards[0]) // it counts what nobody has
	}
}

// ApplyLater is Apply for those who may wait, at applied, which is closed once all of b
// is applied.
func (s *Space) ApplyLater(ctx context.Context, b *event.Batch) (applied <-chan struct{}, err error) {
	done := make(chan struct{})
	return done, s.Apply(ctx, b, func(core.Outcome) { close(done) })
}

// ApplyWait applies b and returns what it did. ctx bounds the wait for room in
// the queue; a batch that is accepted is waited for.
func (s *Space) ApplyWait(ctx context.Context, b *event.Batch) (core.Outcome, error) {
	applied := make(chan core.Outcome, 1)
	if err := s.Apply(ctx, b, func(out core.Outcome) { applied <- out }); err != nil {
		return core.Outcome{}, err
	}
	return <-applied, nil
}

// RemoveWorker drops the worker's blocks on all its ranks and frees its holder
// numbers. It returns when that is done; lookups stop seeing the worker at
// once. ctx bounds the wait for room in the queue.
func (s *Space) RemoveWorker(ctx context.Context, worker uint64) error {
	s.models.Delete(worker) // who comes back says it again
	return s.removeRanks(ctx, func(remove func(*member)) {
		s.table.leave(worker)
		for _, m := range s.table.byWorker[worker] {
			if !m.id.Pool() { // a pool of the same name
				remove(m)
			}
		}
		for id, p := range s.table.replacing {
			if id.Worker == worker && !id.Pool() {
				p.removed.Store(true)
			}
		}
	})
}

// RemoveRank does for one rank what RemoveWorker does for all of a worker's. A pool is no rank.
func (s *Space) RemoveRank(ctx context.Context, id RankID) error {
	if id.Pool() {
		return nil
	}
	return s.removeRanks(ctx, func(remove func(*member)) {
		if m := s.table.find(id); m != nil {
			remove(m)
		}
		if p := s.table.replacing[id]; p != nil {
			p.removed.Store(true)
		}
	})
}

// removeRanks removes the ranks that which names under the lock.
func (s *Space) removeRanks(ctx context.Context, which func(remove func(*member))) error {
	return s.submitWait(ctx, func(t *task) {
		which(func(m *member) {
			t.members = append(t.members, m)
			s.table.remove(m)
		})
	})
}

// Digest returns the digest of the space (see core.DigestTerm) at one point of
// the order of batches. ctx bounds the wait for room in the queue.
func (s *Space) Digest(ctx context.Context) (uint64, error) {
	var sum atomic.Uint64
	id := SpaceHash(s.key)
	err := s.submitWait(ctx, func(t *task) {
		grouped := s.table.grouped()
		t.inspect = func(o *owner) {
			sum.Add(o.index.Digest(id, o.identity) - o.hiddenDigest(id))
			for _, m := range grouped {
				if table := o.groupsHere(m); table != nil {
					sum.Add(table.Digest(id, m.id.Worker, m.id.DPRank))
				}
			}
		}
	})
	if err != nil {
		return 0, err
	}
	return sum.Load(), nil
}

// SpaceHash returns the number that digests name a space by: XXH3-64, seed 0,
// of its block size and the length of its model name, each as little-endian
// u32, the model name and the group.
func SpaceHash(key event.Space) uint64 {
	b := binary.LittleEndian.AppendUint32(nil, key.BlockSize)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(key.Model)))
	b = append(b, key.Model...)
	return xxh3.Hash(append(b, key.Group...))
}

// submit queues a task, with every shard unless prepare says with which; that
// fills it in under the lock.
func (s *Space) submit(ctx context.Context, prepare func(t *task)) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("not applied: %w", err)
	}
	select {
	case s.slots <- struct{}{}: // as a rule; to ask for both takes longer
	default:
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("not applied, the index queue is full: %w", ctx.Err())
		}
	}
	t, err := s.queue(prepare)
	if err == nil && s.inline {
		t.to[0].serve(t)
	}
	return err
}

func (s *Space) queue(prepare func(t *task)) (*task, error) {
	// One lock around all the queues gives the tasks one order in all of them, on
	// which resolving parents over shards relies.
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		<-s.slots
		return nil, ErrClosed
	}
	t := s.tasks.Get().(*task)
	prepare(t)
	if len(t.to) == 0 {
		t.to = append(t.to, s.shards...)
	}
	if t.batch == nil && len(t.members) > 0 {
		t.removes()
	}
	t.start()
	if s.inline {
		return t, nil
	}
	for _, o := range t.to {
		o.queue <- t
	}
	return t, nil
}

// submitWait is submit, and waits until the task is done.
func (s *Space) submitWait(ctx context.Context, prepare func(t *task)) error {
	done := make(chan struct{})
	err := s.submit(ctx, func(t *task) {
		prepare(t)
		t.done = func(core.Outcome) { close(done) }
	})
	if err == nil {
		<-done
	}
	return err
}

// finish is called by the last shard to have done its part of t.
func (s *Space) finish(t *task) {
	var out core.Outcome
	for i := range t.outs {
		out.Add(t.outs[i])
	}
	if t.batch != nil && t.restore == nil {
		s.totals.Lock()
		s.totals.batches++
		s.totals.outcome.Add(out)
		s.totals.Unlock()
	}
	done := t.done
	t.reset()
	s.tasks.Put(t)
	s.giveBack()
	if done != nil {
		done(out)
	}
}

// giveBack gives the token of a finished task back: with those of others, as to
// wake who waits for room costs about as much as to apply a small batch. It
// waits for no task that may never come: the last one to finish gives all back.
func (s *Space) giveBack() {
	if n := s.owed.Add(1); n < int64(cap(s.slots)+1)/2 && n < int64(len(s.slots)) {
		return
	}
	for range s.owed.Swap(0) {
		<-s.slots
	}
}

// Stats describes the work of a space since it was opened.
type Stats struct {
	Queue   int          // batches it accepts before Apply blocks
	Queued  int          // batches accepted and not yet applied
	Batches uint64       // batches applied
	Outcome core.Outcome // what they did
	Ranks   int          // ranks that are present
	// Full says that a shard's index is within a sixteenth of its memory
	// budget, or beyond: new blocks are refused, or soon will be.
	Full bool
	// BlockOps is, per shard, how many block operations it has carried out;
	// the greatest divided by the mean is the imbalance.
	BlockOps []uint64
}

// Stats returns what the space has done.
func (s *Space) Stats() Stats {
	st := Stats{Queue: cap(s.slots), Queued: max(0, len(s.slots)-int(s.owed.Load())), Ranks: int(s.table.count.Load())}
	s.totals.Lock()
	st.Batches, st.Outcome = s.totals.batches, s.totals.outcome
	s.totals.Unlock()
	for _, o := range s.shards {
		st.BlockOps = append(st.BlockOps, o.blockOps.Load())
		st.Full = st.Full || o.isFull()
	}
	return st
}
