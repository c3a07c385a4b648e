package approx

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// What is noted goes into the space by several prompts at once, as to wake its owners for each
// costs as much as what they do.
const (
	bundleMost = 64
	bundleFor  = 5 * time.Millisecond // at most, if nobody asks for it before
)

// bundle is prompts on their way into the space together, with what made room for them.
type bundle struct {
	batches []*event.Batch // one a worker, each in the order in which things came
	prompts int
	late    *time.Timer
	expiry  int64 // when the time of the oldest block that it takes out is over; none with math.MaxInt64

	given atomic.Bool       // to the space: until then it is the Cache's open one
	waits []<-chan struct{} // closed when the space has it; of one that is given
}

// add takes what is new of a prompt. c.mu is held.
func (c *Cache) add(id shard.RankID, ev event.Event) *bundle {
	x := c.batchOf(id.Worker)
	x.Events = append(x.Events, ev)
	c.mu.open.prompts++
	return c.mu.open
}

// removed returns the event of what a run's rank is to hold no more, which blocks of the run are put
// into. c.mu is held.
func (c *Cache) removed(r *run) *event.Event {
	id := r.rank
	x := c.batchOf(id.Worker)
	c.mu.open.expiry = min(c.mu.open.expiry, int64(r.used+c.cfg.TTL))
	if n := len(x.Events) - 1; n < 0 || x.Events[n].Kind != event.Removed || x.Events[n].DPRank != id.DPRank {
		x.Events = append(x.Events, event.Event{Kind: event.Removed, DPRank: id.DPRank})
	}
	return &x.Events[len(x.Events)-1]
}

// batchOf returns a worker's batch of the open bundle. c.mu is held.
func (c *Cache) batchOf(worker uint64) *event.Batch {
	b := c.mu.open
	if b == nil {
		b = &bundle{expiry: math.MaxInt64}
		b.late = time.AfterFunc(bundleFor, func() { c.giveThis(b) })
		c.mu.open = b
	}
	for _, x := range b.batches {
		if x.Worker == worker {
			return x
		}
	}
	x := &event.Batch{Space: c.cfg.Space.Key(), Worker: worker}
	b.batches = append(b.batches, x)
	return x
}

// give gives the space what is open. c.mu is held.
func (c *Cache) give() {
	b := c.mu.open
	if b == nil {
		return
	}
	c.mu.open = nil
	b.late.Stop()
	for _, x := range b.batches {
		applied, err := c.cfg.Space.ApplyLater(context.Background(), x)
		if err != nil {
			c.mu.stats.Failed += uint64(len(x.Events))
			continue
		}
		b.waits = append(b.waits, applied)
	}
	b.batches = nil
	b.given.Store(true)
}

// giveThis gives a bundle, if it is the open one.
func (c *Cache) giveThis(b *bundle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.open == b {
		c.give()
	}
}

// giveAll gives what is open, for those who read the space.
func (c *Cache) giveAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.give()
}

// wait waits until the space has a bundle.
func (c *Cache) wait(b *bundle) {
	if !b.given.Load() {
		c.giveThis(b)
	}
	for _, applied := range b.waits {
		<-applied
	}
}

// in reports whether the space has it.
func (b *bundle) in() bool {
	if !b.given.Load() {
		return false
	}
	for _, applied := range b.waits {
		select {
		case <-applied:
		default:
			return false
		}
	}
	return true
}
