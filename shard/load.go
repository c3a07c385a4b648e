package shard

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// ErrBudget is returned by a load that the memory budget has no room for.
var ErrBudget = errors.New("the memory budget has no room for the snapshot")

// Load fills a new space from the pieces of a cut. Lookups see nothing of it
// until Commit, and then all.
//
// Add may be called beside the work of the calls before; exactly one of Commit
// and Abort ends it.
type Load struct {
	space   *Space
	members []*member
	// parts has one list a shard, each of that shard's owner: a loader for each
	// section.
	parts [][]*core.Loader
	// routes, by section, is where runs went that others leave.
	routes []map[uint32]route
	blocks int                      // expected of each shard
	groups map[core.Holder]*grouped // of the ranks whose cache groups it tells
	over   bool                     // committed or aborted

	mu struct {
		sync.Mutex // of groups, too
		err        error
	}
}

type route struct {
	shard int
	left  int // runs that may still leave
}

// BeginLoad begins the load of a snapshot in which the holders are numbered as
// ranks are here. A section of it is what one shard gave out. So many blocks are
// expected, of all shards: memory is taken for them.
func (s *Space) BeginLoad(ranks []RankID, sections, blocks int) (*Load, error) {
	if err := s.canCut(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.closed:
		return nil, ErrClosed
	case s.table.next != 0:
		return nil, ErrNotNew
	case sections < 0:
		return nil, fmt.Errorf("loading %d sections", sections)
	case len(ranks) > s.maxRanks:
		return nil, fmt.Errorf("loading %d ranks into a space of %d at most", len(ranks), s.maxRanks)
	}
	seen := make(map[RankID]bool, len(ranks))
	for _, id := range ranks { // before any has a number: the space stays new
		if seen[id] {
			return nil, fmt.Errorf("loading a snapshot that names worker %d, rank %d twice", id.Worker, id.DPRank)
		}
		seen[id] = true
	}
	l := &Load{space: s, parts: make([][]*core.Loader, len(s.shards)), routes: make([]map[uint32]route, sections), blocks: blocks / len(s.shards), groups: make(map[core.Holder]*grouped)}
	for i := range l.routes {
		l.routes[i] = make(map[uint32]route)
	}
	for i := range l.parts {
		l.parts[i] = make([]*core.Loader, sections)
	}
	for _, id := range ranks {
		m := s.table.hidden(id, len(s.shards))
		m.reachAll()
		m.loaded = true
		l.members = append(l.members, m)
	}
	return l, nil
}

// Add has the pieces of a section loaded, in the order of the calls, and
// returns before that is done; then it calls done, if not nil, which must not block. The
// pieces must not change until then. An error may be of an earlier call. ctx
// bounds the wait for room in the queue.
func (l *Load) Add(ctx context.Context, section int, pieces []core.Piece, done func()) error {
	if err := l.failed(); err != nil {
		return err
	}
	to := make([]int, len(pieces))
	for i := range pieces {
		if err := l.check(&pieces[i]); err != nil {
			return err
		}
		var err error
		if to[i], err = l.route(section, &pieces[i]); err != nil {
			return err
		}
	}
	return l.space.submit(ctx, func(t *task) {
		t.inspect = func(o *owner) {
			part := l.parts[o.number]
			if part[section] == nil {
				part[section] = o.index.(cutter).NewLoader(l.blocks)
				l.hide(o)
			}
			for i := range pieces {
				if to[i] != o.number || l.failed() != nil {
					continue
				}
				if err := part[section].Add(&pieces[i]); err != nil {
					l.fail(err)
				}
			}
			o.recomputeMemory()
			if led := o.account.ledger; led.budget > 0 && led.used.Load() > led.budget {
				l.fail(ErrBudget)
			}
		}
		t.done = func(core.Outcome) {
			if done != nil {
				done()
			}
		}
	})
}

// hide keeps the ranks out of the shard's digests until Commit.
func (l *Load) hide(o *owner) {
	if o.hidden == nil {
		o.hidden = make(map[core.Holder]struct{})
	}
	for _, m := range l.members {
		o.hidden[o.holder(m)] = struct{}{}
	}
}

// check refuses holders that the snapshot does not have.
func (l *Load) check(p *core.Piece) error {
	for i := range p.Held {
		if int(p.Held[i].Holder) >= len(l.members) {
			return fmt.Errorf("%w: holder %d of %d", core.ErrPiece, p.Held[i].Holder, len(l.members))
		}
	}
	for i := range p.Exceptions {
		if int(p.Exceptions[i].Holder) >= len(l.members) {
			return fmt.Errorf("%w: holder %d of %d", core.ErrPiece, p.Exceptions[i].Holder, len(l.members))
		}
	}
	return nil
}

// route returns the shard of the piece: that of the run it leaves, or of its
// first block.
func (l *Load) route(section int, p *core.Piece) (int, error) {
	if section < 0 || section >= len(l.routes) || len(p.Local) == 0 {
		return 0, fmt.Errorf("%w: section %d, %d blocks", core.ErrPiece, section, len(p.Local))
	}
	routes := l.routes[section]
	to := l.space.shardOf(p.Local[0])
	if p.Parent != 0 {
		up, ok := routes[p.Parent]
		if !ok {
			return 0, fmt.Errorf("%w: it leaves run %d, which is not there", core.ErrPiece, p.Parent)
		}
		if to, up.left = up.shard, up.left-1; up.left == 0 {
			delete(routes, p.Parent)
		} else {
			routes[p.Parent] = up
		}
	}
	if len(p.Children) > 0 {
		routes[p.Number] = route{to, len(p.Children)}
	}
	return to, nil
}

// Infer marks blocks as inferred, as core.Loader does; after the last Add.
func (l *Load) Infer(ctx context.Context, h core.Holder, hashes []uint64) error {
	return l.each(ctx, func(o *owner) {
		for _, part := range l.parts[o.number] {
			if part != nil {
				part.Infer(h, hashes) // each hash is in one shard
				return
			}
		}
	})
}

// Groups takes what a rank holds in its cache groups, in one call or several, of which one
// may have nothing: that says that there is nothing else. Before Finish.
func (l *Load) Groups(h core.Holder, ev *event.Event, copies []uint32) error {
	if int(h) >= len(l.members) || len(copies) < len(ev.Engine) {
		return fmt.Errorf("%w: cache groups of holder %d of %d", core.ErrPiece, h, len(l.members))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[h]
	if g == nil {
		g = newGrouped()
		l.groups[h] = g
	}
	g.mu.table.Restore(ev, copies) // nobody else knows it yet
	return nil
}

// finishGroups tells the tables where blocks stand, and gives them to their ranks.
func (l *Load) finishGroups(ctx context.Context) error {
	if len(l.groups) == 0 {
		return nil
	}
	err := l.each(ctx, func(o *owner) {
		for h, g := range l.groups {
			o.index.Dump(h, func(ev *event.Event, copies []uint32) bool {
				g.mu.Lock()
				defer g.mu.Unlock()
				g.mu.table.Restore(ev, copies)
				return true
			})
		}
	})
	if err != nil {
		return err
	}
	l.space.mu.Lock()
	defer l.space.mu.Unlock()
	for h, g := range l.groups {
		g.mu.table.Restored() // every owner is done with it
		l.members[h].give(g)
		l.members[h].loaded = false
	}
	l.space.MarkHybrid()
	l.space.grouped.Store(true)
	return nil
}

// each has every owner call f and waits.
func (l *Load) each(ctx context.Context, f func(o *owner)) error {
	if err := l.space.submitWait(ctx, func(t *task) { t.inspect = f }); err != nil {
		return err
	}
	return l.failed()
}

// Finish waits until everything is loaded and says whether that went well. It
// is called after the last Add, before Commit.
func (l *Load) Finish(ctx context.Context) error {
	err := l.each(ctx, func(o *owner) {
		for _, part := range l.parts[o.number] {
			if part != nil {
				part.Finish() // runs of ranks that the snapshot leaves out
			}
		}
		o.recomputeMemory()
	})
	if err != nil {
		return err
	}
	return l.finishGroups(ctx)
}

// Commit shows what was loaded to lookups. After an error Abort is due.
func (l *Load) Commit(ctx context.Context) error {
	if err := l.failed(); err != nil {
		return err
	}
	err := l.space.submitWait(ctx, func(t *task) {
		for _, m := range l.members {
			l.space.table.show(m)
		}
		t.inspect = func(o *owner) {
			for _, m := range l.members {
				delete(o.hidden, o.holder(m))
				o.assignHolder(m)
				o.publish(m)
				if g := m.groups.Load(); g != nil && g.home == o.number {
					o.weigh(g)
				}
			}
		}
	})
	if l.over = err == nil; l.over {
		l.fail(errCommitted)
	}
	return err
}

// Abort drops what was loaded, unless it was committed. It returns when that is done.
func (l *Load) Abort() {
	if l.over {
		return
	}
	l.over = true
	l.fail(errAborted) // what is queued is passed over
	err := l.space.submitWait(context.Background(), func(t *task) { t.members = append(t.members, l.members...) })
	if err != nil {
		return // the space is closed
	}
	_ = l.each(context.Background(), func(o *owner) {
		for _, part := range l.parts[o.number] {
			if part != nil {
				part.Finish()
			}
		}
		o.recomputeMemory()
	})
	l.space.mu.Lock()
	defer l.space.mu.Unlock()
	l.space.table.renew()
}

var (
	errAborted   = errors.New("the load was aborted")
	errCommitted = errors.New("the load was committed already")
)

func (l *Load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.err == nil {
		l.mu.err = err
	}
}

func (l *Load) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.err
}

// Held returns how many blocks the space's ranks hold on each tier, as their
// owners last said.
func (s *Space) Held() (held [event.NumTiers]int) {
	s.EachMember(func(m Member) {
		for t, n := range m.Stat().Held {
			held[t] += n
		}
	})
	return held
}
