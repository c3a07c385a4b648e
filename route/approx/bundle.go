package approx

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// What is noted goes into the space by several prompts at once, as to wake its owners for each
// costs as much as what they do.
const (
	bundleMost = 16
	bundleFor  = 5 * time.Millisecond // at most, if nobody asks for it before
)

// bundle is prompts on their way into the space together.
type bundle struct {
	batches []*event.Batch // one a worker
	prompts int
	late    *time.Timer

	given atomic.Bool       // to the space: until then it is the Cache's open one
	waits []<-chan struct{} // closed when the space has it; of one that is given
}

// add takes what is new of a prompt. c.mu is held.
func (c *Cache) add(id shard.RankID, ev event.Event) *bundle {
	b := c.mu.open
	if b == nil {
		b = new(bundle)
		b.late = time.AfterFunc(bundleFor, func() { c.giveThis(b) })
		c.mu.open = b
	}
	b.prompts++
	for _, x := range b.batches {
		if x.Worker == id.Worker {
			x.Events = append(x.Events, ev)
			return b
		}
	}
	b.batches = append(b.batches, &event.Batch{Space: c.cfg.Space.Key(), Worker: id.Worker, Events: []event.Event{ev}})
	return b
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
