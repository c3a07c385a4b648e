package lab

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// feed brings engines' events to the index, late or not at all. As the delay is
// the same for all, messages arrive in the order in which they were sent.
type feed struct {
	space *shard.Space
	delay time.Duration
	loss  float64
	rng   *rand.Rand

	open   message // of the step under way
	sent   []message
	head   int         // of sent: messages before it have arrived
	batch  event.Batch // of the message that arrives
	spare  [][]event.Event
	hashes []uint64 // room for those of events

	groups []event.CacheGroup // of each worker's model, which registrations say

	// What was sent by each worker, also what was lost, where what it holds may be asked for.
	history [][]event.Event

	events, lost, dumps uint64
	outcome             core.Outcome
	note                func(core.Outcome) // adds to it
}

// message is what a worker publishes in one step.
type message struct {
	at     time.Duration // when it arrives
	worker int
	events []event.Event
}

func newFeed(space *shard.Space, c *Config) *feed {
	workers := c.Workers + c.PrefillWorkers
	f := &feed{
		space: space, delay: c.EventDelay, loss: c.EventLoss,
		rng:    rand.New(rand.NewPCG(c.Seed, 0x66656564)),
		batch:  event.Batch{Space: space.Key()},
		groups: c.Engine.CacheGroups(),
	}
	f.note = func(out core.Outcome) { f.outcome.Add(out) }
	if c.EventLoss > 0 && c.Route.Doubt {
		f.history = make([][]event.Event, workers)
	}
	for w := range workers {
		f.registered(w)
	}
	return f
}

// apply is an engine's sink: the event lives until it returns.
func (f *feed) apply(ev *event.Event) {
	e := *ev
	e.Engine, e.Local = f.keep(ev.Engine), f.keep(ev.Local)
	f.open.events = append(f.open.events, e)
}

// keep copies hashes to where many have room at once.
func (f *feed) keep(hashes []uint64) []uint64 {
	if len(hashes) == 0 {
		return nil
	}
	if cap(f.hashes)-len(f.hashes) < len(hashes) {
		f.hashes = make([]uint64, 0, max(1<<13, len(hashes)))
	}
	n := len(f.hashes)
	f.hashes = append(f.hashes, hashes...)
	return f.hashes[n:len(f.hashes):len(f.hashes)]
}

// publish sends what a worker's step has said.
func (f *feed) publish(now time.Duration, worker int) {
	if len(f.open.events) == 0 {
		return
	}
	m := message{at: now + f.delay, worker: worker, events: f.open.events}
	if f.history != nil {
		f.history[worker] = append(f.history[worker], m.events...)
	}
	f.open.events = nil
	if n := len(f.spare); n > 0 {
		f.open.events, f.spare = f.spare[n-1], f.spare[:n-1]
	}
	f.events += uint64(len(m.events))
	if f.loss > 0 && f.rng.Float64() < f.loss {
		f.lost += uint64(len(m.events))
		return
	}
	if f.head > 1024 && f.head > len(f.sent)/2 {
		f.sent = slices.Delete(f.sent, 0, f.head)
		f.head = 0
	}
	f.sent = append(f.sent, m)
}

// sync applies what has arrived by now.
func (f *feed) sync(now time.Duration) error {
	for ; f.head < len(f.sent) && f.sent[f.head].at <= now; f.head++ {
		m := &f.sent[f.head]
		f.batch.Worker, f.batch.Events, f.batch.Published = uint64(m.worker), m.events, routerEpoch.Add(m.at-f.delay).UnixNano()
		if err := f.space.Apply(context.Background(), &f.batch, f.note); err != nil {
			return fmt.Errorf("feeding the index: %w", err)
		}
		if f.history == nil { // of which a message may be
			clear(m.events)
			f.spare = append(f.spare, m.events[:0])
		}
		*m = message{}
	}
	if f.head == len(f.sent) && f.history == nil { // nothing is on its way, or kept
		f.sent, f.head, f.hashes = f.sent[:0], 0, f.hashes[:0]
	}
	return nil
}

// remove forgets a worker that has died, and what it sent last.
func (f *feed) remove(now time.Duration, worker int) error {
	if err := f.sync(now); err != nil {
		return err
	}
	f.sent = slices.DeleteFunc(f.sent[f.head:], func(m message) bool { return m.worker == worker })
	f.head = 0
	if err := f.space.RemoveWorker(context.Background(), uint64(worker)); err != nil {
		return fmt.Errorf("removing worker %d from the index: %w", worker, err)
	}
	f.registered(worker)
	if f.history != nil {
		f.history[worker] = nil
	}
	return nil
}

// registered says what the worker's model caches.
func (f *feed) registered(worker int) {
	if f.groups != nil {
		f.space.SetCacheGroups(uint64(worker), f.groups)
	}
}

// reread puts what a worker holds now in the place of what the index has of it, as a dump does.
func (f *feed) reread(now time.Duration, worker int) error {
	if f.history == nil {
		return nil
	}
	all := f.history[worker]
	if err := f.remove(now, worker); err != nil {
		return err
	}
	f.history[worker] = all
	f.sent = append(f.sent, message{at: now, worker: worker, events: all})
	slices.SortStableFunc(f.sent, func(a, b message) int { return cmp.Compare(a.at, b.at) })
	f.dumps++
	return f.sync(now)
}
