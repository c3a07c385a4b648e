package replica

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/route/load"
)

// Transport carries messages between the routers of a space. It may lose,
// double and reorder them. What it is given is its own afterwards.
type Transport interface {
	// Publish sends to every router; whether the sender gets a copy does not
	// matter.
	Publish(msg []byte) error
	// Send sends to one router.
	Send(to uint64, msg []byte) error
}

// State is the load that is kept in agreement. A *route.Router is one.
type State interface {
	// Apply takes a change that another router made.
	Apply(c load.Change) bool
	// Replace makes live the bookings of another router, in place of those
	// that are known.
	Replace(owner uint64, live iter.Seq[load.Change])
	// DropOwner ends all bookings of another router.
	DropOwner(owner uint64)
	// Own calls begin and then each for every live booking of this router,
	// with no change in between.
	Own(begin func(), each func(c load.Change))
}

// Config holds what a Replicas is made with. State, Transport and ID must be
// set.
type Config struct {
	// ID is this router's, different from every other's and from those of its
	// earlier runs.
	ID uint64
	// Scope names the space; messages of other scopes are ignored. See
	// shard.SpaceHash.
	Scope     uint64
	State     State
	Transport Transport
	Now       func() time.Time // nil is time.Now

	// Heartbeat is the time between two; 0 is 1 second. A router that is silent
	// for Lost of them (0 is 5) is gone.
	Heartbeat time.Duration
	Lost      int
	// Retry is the least time between two requests for the same router's
	// snapshot, and between two of this one that are sent, to all who have asked by
	// then; 0 is a quarter of Heartbeat.
	Retry time.Duration
	// MessageBytes is the most that a message holds; 0 is 512 KiB. QueueBytes
	// is the most that waits to be sent, and per peer, to be applied; 0 is 4
	// MiB. SnapshotBytes is the most that a peer's snapshot may have, and one's own, which tells of what is beyond half of it
	// how many blocks are in use, and not which; 0 is 64 MiB.
	MessageBytes, QueueBytes, SnapshotBytes int
	// Delay, if not nil, is told how long a word takes at most and at least to come to the others, by how long
	// its own take to come back, if the transport gives the sender a copy.
	Delay func(most, least time.Duration)
	// MaxPeers is how many other routers are listened to; 0 is 256.
	MaxPeers int
}

func (c Config) withDefaults() Config {
	or := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	or(&c.Lost, 5)
	or(&c.MessageBytes, 512<<10)
	or(&c.QueueBytes, 4<<20)
	or(&c.SnapshotBytes, 64<<20)
	or(&c.MaxPeers, 256)
	c.MessageBytes = max(c.MessageBytes, 1<<10)
	c.QueueBytes = max(c.QueueBytes, c.MessageBytes)
	if c.Heartbeat <= 0 {
		c.Heartbeat = time.Second
	}
	c.Heartbeat = max(c.Heartbeat, time.Millisecond) // parts of it are waited for
	if c.Retry <= 0 {
		c.Retry = c.Heartbeat / 4
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Stats counts what a Replicas did.
type Stats struct {
	Peers     int // routers heard of late
	Synced    int // of these, whose bookings are known
	Sent      uint64
	Applied   uint64 // messages of changes
	Duplicate uint64 // messages that were known already
	Gaps      uint64 // messages missed, or number unknown: a snapshot was asked for
	Snapshots uint64 // taken over
	Served    uint64 // snapshots sent
	Overflow  uint64 // times that a queue was full, which makes a gap
	Malformed uint64
	Foreign   uint64 // messages of other scopes, and of routers beyond MaxPeers
	Lost      uint64 // routers that fell silent
}

// Replicas is one router's part in the agreement. Its methods are safe for
// concurrent use.
type Replicas struct {
	cfg  Config
	wake chan struct{} // there is something to flush

	// alone is whether no other router is known, as mu.peers says: then what changes is not
	// written down, and only that something has: unsaid.
	alone, unsaid atomic.Bool

	mu struct {
		sync.Mutex
		peers  map[uint64]*peer
		number uint64 // of the last message of changes, sent or left out
		beat   time.Time
		askers []uint64 // routers that want our snapshot
		served time.Time
		stats  Stats
		echo   echo
	}

	queue struct {
		sync.Mutex
		pending
	}
}

// pending is changes on their way out.
type pending struct {
	buf      []byte
	ends     []int                              // of each change in buf
	beside   [typeFailing - typeBids + 1][]byte // what is fleeting, by its type
	overflow bool                               // some did not fit: buf is empty and means nothing
	unsaid   bool                               // some were not written down: buf means nothing
}

// New returns a Replicas; make it the journal of the State's router, then call
// Run, or Flush and Tick from a loop of one's own.
func New(cfg Config) *Replicas {
	p := &Replicas{cfg: cfg.withDefaults(), wake: make(chan struct{}, 1)}
	p.mu.peers = make(map[uint64]*peer)
	p.alone.Store(true)
	return p
}

// Record queues a change to be told. It is called under the router's lock and
// does not block.
func (p *Replicas) Record(c load.Change) {
	if p.alone.Load() {
		if fleeting(c.Kind) == 0 && !p.unsaid.Load() {
			p.unsaid.Store(true)
		}
		return
	}
	p.queue.Lock()
	defer p.queue.Unlock()
	q := &p.queue.pending
	if kind := fleeting(c.Kind); kind != 0 { // what does not fit is not told
		list := &q.beside[kind-typeBids]
		if b := appendChange(*list, &c, 0); len(b) <= p.cfg.MessageBytes-headerSize {
			*list = b
			p.signal()
		}
		return
	}
	if q.overflow {
		return
	}
	q.buf = appendChange(q.buf, &c, p.cfg.MessageBytes-headerSize)
	if len(q.buf) > p.cfg.QueueBytes {
		*q = pending{overflow: true, beside: q.beside}
	} else {
		q.ends = append(q.ends, len(q.buf))
	}
	p.signal()
}

// fleeting returns in which messages a change is told that is soon of no use: it has no number, and is neither
// asked for again nor in snapshots. It is 0 for those that are.
func fleeting(k load.Kind) byte {
	switch k {
	case load.Sought:
		return typeBids
	case load.Fetched:
		return typeFetches
	case load.Failing:
		return typeFailing
	}
	return 0
}

func (p *Replicas) signal() {
	select {
	case p.wake <- struct{}{}:
	default: // it is set already
	}
}

func (p *Replicas) takeQueue() pending {
	p.queue.Lock()
	defer p.queue.Unlock()
	q := p.queue.pending
	p.queue.pending = pending{}
	q.unsaid = p.unsaid.Swap(false)
	return q
}

// Flush sends the changes that wait, and the snapshots that were asked for.
// What the transport refuses becomes a gap that the peers notice.
func (p *Replicas) Flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isDue(p.cfg.Now()) {
		return p.serve()
	}
	return p.send(p.takeQueue())
}

// isDue reports whether a snapshot is to be sent. Whoever asks again and again is
// answered no more often than they should ask.
func (p *Replicas) isDue(now time.Time) bool {
	return len(p.mu.askers) > 0 && now.Sub(p.mu.served) >= p.cfg.Retry
}

// send publishes changes, in messages that are not too long. With nobody to
// tell it only counts a number, so that whoever has an older state sees a gap.
func (p *Replicas) send(q pending) error {
	if q.overflow {
		p.mu.stats.Overflow++
	}
	if q.overflow || q.unsaid || len(q.ends) > 0 && len(p.mu.peers) == 0 {
		p.mu.number++
		return nil
	}
	var errs []error
	for start, i := 0, 0; i < len(q.ends); {
		end := q.ends[i]
		for i++; i < len(q.ends) && q.ends[i]-start <= p.cfg.MessageBytes-headerSize; i++ {
			end = q.ends[i]
		}
		p.mu.number++
		msg := append(p.header(typeChanges), q.buf[start:end]...)
		errs = append(errs, p.publish(msg))
		start = end
	}
	for i, told := range q.beside { // behind the bookings that they are of
		if len(told) > 0 && len(p.mu.peers) > 0 {
			errs = append(errs, p.publish(append(p.header(typeBids+byte(i)), told...)))
		}
	}
	return errors.Join(errs...)
}

func (p *Replicas) header(kind byte) []byte {
	return header{kind, p.cfg.Scope, p.cfg.ID, p.mu.number}.append(nil)
}

func (p *Replicas) publish(msg []byte) error {
	p.mu.stats.Sent++
	p.mu.echo.sent(msg, p.cfg.Now())
	if err := p.cfg.Transport.Publish(msg); err != nil {
		return fmt.Errorf("telling the other routers: %w", err)
	}
	return nil
}

// serve sends the live bookings to those who asked, after the changes that
// were made before.
func (p *Replicas) serve() error {
	askers := p.mu.askers
	p.mu.askers, p.mu.served = nil, p.cfg.Now()
	var before pending
	var parts [][]byte
	var part []byte
	const room = 16 // for what stands before the changes
	most := p.cfg.MessageBytes - headerSize - room
	left := p.cfg.SnapshotBytes / 2 // behind these blocks are told as numbers: of more, nothing would be taken
	p.cfg.State.Own(func() { before = p.takeQueue() }, func(c load.Change) {
		from := len(part)
		part = appendChange(part, &c, min(most, left))
		left -= len(part) - from
		if len(part) > most && from > 0 {
			parts = append(parts, part[:from:from])
			part = append([]byte(nil), part[from:]...)
		}
	})
	parts = append(parts, part)
	errs := []error{p.send(before)}
	p.mu.stats.Served++
	for i, part := range parts {
		msg := place{p.mu.stats.Served, uint64(i), i == len(parts)-1}.append(p.header(typeSnapshot))
		msg = append(msg, part...)
		for _, to := range askers {
			if err := p.cfg.Transport.Send(to, append([]byte(nil), msg...)); err != nil {
				errs = append(errs, fmt.Errorf("sending a snapshot to a router: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

// Tick sends a heartbeat when it is time, asks again for snapshots that have
// not come, and forgets routers that are silent. Call it at least four times a
// heartbeat.
func (p *Replicas) Tick() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Now()
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(p.mu.peers)) {
		from := p.mu.peers[id]
		if now.Sub(from.heard) > time.Duration(p.cfg.Lost)*p.cfg.Heartbeat {
			p.mu.stats.Lost++
			p.forget(id)
		} else if !from.current() {
			errs = append(errs, p.ask(id, from, now))
		}
	}
	if p.isDue(now) {
		errs = append(errs, p.serve())
	}
	if now.Sub(p.mu.beat) >= p.cfg.Heartbeat {
		p.mu.beat = now
		if p.unsaid.Load() {
			errs = append(errs, p.send(p.takeQueue())) // so that the number says it
		}
		errs = append(errs, p.publish(p.header(typeHeartbeat)))
	}
	return errors.Join(errs...)
}

func (p *Replicas) forget(id uint64) {
	delete(p.mu.peers, id)
	p.alone.Store(len(p.mu.peers) == 0)
	p.cfg.State.DropOwner(id)
}

// Leave tells the others that this router ends; they forget its bookings.
func (p *Replicas) Leave() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.publish(p.header(typeLeaving))
}

// Run flushes and ticks until the context is done, and then leaves. Errors of
// the transport go to report, which may be nil.
func (p *Replicas) Run(ctx context.Context, report func(error)) {
	say := func(err error) {
		if err != nil && report != nil {
			report(err)
		}
	}
	tick := time.NewTicker(p.cfg.Heartbeat / 4)
	defer tick.Stop()
	for {
		say(p.Tick())
		select {
		case <-ctx.Done():
			say(p.Leave())
			return
		case <-p.wake:
			say(p.Flush())
		case <-tick.C:
		}
	}
}

// Stats returns what the Replicas did.
func (p *Replicas) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.mu.stats
	s.Peers = len(p.mu.peers)
	for _, from := range p.mu.peers {
		if from.current() {
			s.Synced++
		}
	}
	return s
}
