package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/recovery"
	"github.com/kvatlas/kvatlas/registry"
)

// Errors of a Publisher.
var (
	ErrClosed  = errors.New("publisher is closed")
	ErrDropped = errors.New("event dropped: too much is not acknowledged yet")
)

// Publisher publishes the events of one worker. It is safe for concurrent
// use; events of concurrent callers are in the order in which they got in.
type Publisher struct {
	cfg     Config
	out     transport
	source  *recovery.Source // what replicas that missed something ask
	subject string
	nonce   uint64 // makes message ids unique to this Publisher
	m       *meters

	wake   chan struct{} // tells the sender that mu's fields changed; holds one token
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when the sender has ended
	asked  *nats.Subscription

	announced *registry.Announcement // nil: the worker is not registered

	mu struct {
		sync.Mutex
		ranks    map[uint32]*progress
		open     batch         // the events not yet encoded
		queue    []*message    // encoded, oldest first, not yet sent
		pending  int           // bytes accepted and not yet acknowledged or given up
		limit    int           // bytes that a message's body may have
		seq      uint64        // messages encoded
		resolved uint64        // messages acknowledged or given up: they end in order
		closing  bool          // accept no more
		refused  bool          // the stream has not taken a message for StreamWait
		flushes  []flush       // who waits for resolved, lowest first
		room     chan struct{} // closed when who waits is to look again; made by who waits
		probe    event.Batch   // scratch to check an event with
	}
}

// flush is a caller of Flush.
type flush struct {
	seq  uint64 // the message it waits for
	done chan struct{}
}

// progress is the state of one dp_rank.
type progress struct {
	last     uint64 // id of the newest event
	resolved uint64 // every event up to this id is acknowledged, or dropped
	// incomplete: what the next events say (event.Event.Incomplete).
	incomplete bool
}

// Open makes the space's stream if needed, starts a publisher, and registers the
// worker if the configuration says so.
func Open(ctx context.Context, cfg Config) (*Publisher, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.Conn == nil {
		return nil, errors.New("publish: no connection given")
	}
	var out transport
	if cfg.Transport == CoreNATS {
		out = newCoreNATS(cfg)
	} else if out, err = newJetStream(ctx, cfg); err != nil {
		return nil, fmt.Errorf("publish: %w", obs.Plain(err))
	}
	p := start(cfg, out)
	if err = p.answer(); err == nil {
		err = p.register(ctx)
	}
	if err != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.Close(ended) // nothing was published yet
		return nil, fmt.Errorf("publish: %w", obs.Plain(err))
	}
	return p, nil
}

// start starts a publisher on a transport; cfg has its defaults.
func start(cfg Config, out transport) *Publisher {
	p := &Publisher{
		cfg:     cfg,
		out:     out,
		subject: out.subject(cfg.Namespace, cfg.Space, cfg.Worker),
		source: recovery.NewSource(recovery.Config{
			Space: cfg.Space, Worker: cfg.Worker, Incarnation: cfg.Incarnation, CountCopies: cfg.CountCopies,
			Ring: cfg.RingEvents, RingBytes: cfg.RingBytes, KeepDump: cfg.KeepDump, Dumps: cfg.Dumps, Resume: cfg.Resume, Holds: cfg.Holds,
		}),
		nonce: rand.Uint64(),
		m:     newMeters(cfg.Metrics),
		wake:  make(chan struct{}, 1),
		done:  make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.mu.ranks = make(map[uint32]*progress)
	for _, pos := range cfg.Resume {
		p.mu.ranks[pos.DPRank] = &progress{last: pos.ID, resolved: pos.ID, incomplete: pos.Incomplete}
	}
	p.mu.probe = event.Batch{Space: cfg.Space, Events: make([]event.Event, 1)}
	p.mu.limit = out.maxMessage()
	go newSender(p).run()
	return p
}

// Incarnation returns the number that names this run of the engine.
func (p *Publisher) Incarnation() uint64 { return p.cfg.Incarnation }

// Positions returns the last event id of every rank, for Config.Resume.
func (p *Publisher) Positions() []event.Position {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.positionsLocked(func(r *progress) uint64 { return r.last })
}

func (p *Publisher) positionsLocked(id func(*progress) uint64) []event.Position {
	list := make([]event.Position, 0, len(p.mu.ranks))
	for n, r := range p.mu.ranks {
		list = append(list, event.Position{DPRank: n, ID: id(r), Incomplete: r.incomplete})
	}
	slices.SortFunc(list, func(a, b event.Position) int { return cmp.Compare(a.DPRank, b.DPRank) })
	return list
}

// SetIncomplete says from which event on the rank's stream lacks events that
// nobody has any more, and from which on it lacks nothing that counts: because
// the rank was cleared, say. Meanwhile replicas look for unknown parents with
// other workers of the same engine hash scheme, and show the rank as incomplete.
func (p *Publisher) SetIncomplete(dpRank uint32, incomplete bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rankLocked(dpRank).incomplete = incomplete
	p.source.SetIncomplete(dpRank, incomplete)
}

// Parent says what a stored chain of blocks follows: Root, or After a block.
type Parent struct {
	hash  uint64
	given bool
}

// Root begins a prompt: the first block has no parent.
func Root() Parent { return Parent{} }

// After continues the block that the engine calls hash.
func After(hash uint64) Parent { return Parent{hash, true} }

// Stored publishes that the blocks became resident on the tier, in chain
// order, each the parent of the next. engine holds the engine's own hashes,
// local the local hashes: one per engine hash, or none if the blocks are only
// known by their engine hash: then they are those that the rank holds by it, or
// else that another worker of the same engine hash scheme does, and a dump has
// the former only. The slices are copied.
func (p *Publisher) Stored(ctx context.Context, dpRank uint32, tier event.Tier, parent Parent, engine, local []uint64) error {
	return p.Publish(ctx, event.Event{Kind: event.Stored, DPRank: dpRank, Tier: tier,
		HasParent: parent.given, Parent: parent.hash, Engine: engine, Local: local})
}

// Removed publishes that the blocks are no longer resident on the tier. The
// slice is copied.
func (p *Publisher) Removed(ctx context.Context, dpRank uint32, tier event.Tier, engine []uint64) error {
	return p.Publish(ctx, event.Event{Kind: event.Removed, DPRank: dpRank, Tier: tier, Engine: engine})
}

// Cleared publishes that the rank holds nothing any more, on any tier.
func (p *Publisher) Cleared(ctx context.Context, dpRank uint32) error {
	return p.Publish(ctx, event.Event{Kind: event.Cleared, DPRank: dpRank, AllTiers: true})
}

// Publish accepts one event; its ID and Incomplete are set here, its slices copied. An
// event too large for a message is published as several, all of them or none. When the
// publisher is full, Publish waits until ctx ends, or drops the event with ErrDropped. An
// error that wraps event.ErrEncode means that the event has no meaning.
func (p *Publisher) Publish(ctx context.Context, ev event.Event) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.probe.Events[0] = ev
	err := p.mu.probe.Check()
	p.mu.probe.Events[0] = event.Event{}
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	lost, err := p.roomLocked(ctx, event.MaxEventSize(&ev))
	if err != nil {
		return err
	}
	for rest := ev; ; {
		part := rest
		n := min(len(rest.Engine), p.maxBlocksLocked())
		part.Engine = rest.Engine[:n]
		if len(rest.Local) > 0 {
			part.Local, rest.Local = rest.Local[:n], rest.Local[n:]
		}
		p.numberLocked(&part) // also what is dropped: the gap tells readers of the loss
		p.source.Apply(part)
		if lost == nil {
			p.addLocked(part)
		} else {
			lost.Inc()
		}
		if rest.Engine = rest.Engine[n:]; len(rest.Engine) == 0 {
			break
		}
		if rest.Kind == event.Stored && rest.Group == 0 {
			rest.HasParent, rest.Parent = true, part.Engine[n-1]
		}
	}
	if lost == p.m.droppedFull {
		return ErrDropped
	}
	return nil
}

// eventOverhead is what an event adds to a message beside its hashes, at most:
// head, rank, id, number of hashes and parent (event.MaxEventSize).
const eventOverhead = 64

// maxBlocksLocked returns how many blocks an event may have to fit a message.
func (p *Publisher) maxBlocksLocked() int {
	room := p.mu.limit - event.HeaderSize(&p.mu.probe) - eventOverhead
	return max(1, room/16)
}

// addLocked puts an event that fits a message into the open batch.
func (p *Publisher) addLocked(ev event.Event) {
	cost := event.MaxEventSize(&ev)
	open := &p.mu.open
	if open.bytes > 0 && open.bytes+cost > p.batchBytesLocked() {
		p.sealLocked()
	}
	first := len(open.events) == 0
	open.add(ev, cost)
	p.mu.pending += cost
	p.m.pending.Add(float64(cost))
	p.m.accepted(&ev)
	if first {
		open.since = time.Now()
	}
	full := len(open.events) >= p.cfg.BatchEvents || open.bytes >= p.batchBytesLocked()
	if full {
		p.sealLocked()
	}
	if first || full {
		p.wakeSender()
	}
}

// batchBytesLocked bounds the events' bytes of one message.
func (p *Publisher) batchBytesLocked() int {
	return min(p.cfg.BatchBytes, p.mu.limit-event.HeaderSize(&p.mu.probe))
}

// roomLocked returns once there is room for cost bytes; or, where that is not waited for,
// what counts the event that is not sent. An event larger than all the room there is gets
// in alone. It releases the lock while it waits.
func (p *Publisher) roomLocked(ctx context.Context, cost int) (lost *metrics.Counter, err error) {
	var since time.Time
	for {
		switch {
		case p.mu.closing:
			return nil, ErrClosed
		case p.mu.pending == 0 || p.mu.pending+cost <= p.cfg.MaxPending:
			if !since.IsZero() {
				p.m.blockedSeconds.Add(time.Since(since).Seconds())
			}
			return nil, nil
		case p.mu.refused:
			return p.m.droppedRefused, nil // it is kept for those who ask
		case p.cfg.WhenFull == Drop:
			return p.m.droppedFull, nil
		}
		if since.IsZero() {
			since = time.Now()
			p.m.blocked.Inc()
		}
		if p.mu.room == nil {
			p.mu.room = make(chan struct{})
		}
		room := p.mu.room
		p.mu.Unlock()
		select {
		case <-room:
		case <-p.done:
			err = ErrClosed
		case <-ctx.Done():
			err = fmt.Errorf("publish: waiting for acknowledgements: %w", ctx.Err())
		}
		p.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
}

// lookAgainLocked has callers that wait look for room again.
func (p *Publisher) lookAgainLocked() {
	if p.mu.room != nil {
		close(p.mu.room)
		p.mu.room = nil
	}
}

// numberLocked makes the event its rank's next.
func (p *Publisher) numberLocked(ev *event.Event) {
	r := p.rankLocked(ev.DPRank)
	r.last++
	ev.ID, ev.Incomplete = r.last, r.incomplete
}

func (p *Publisher) rankLocked(dpRank uint32) *progress {
	r := p.mu.ranks[dpRank]
	if r == nil {
		r = &progress{}
		p.mu.ranks[dpRank] = r
	}
	return r
}

// sealLocked encodes the open batch and queues it.
func (p *Publisher) sealLocked() {
	if len(p.mu.open.events) == 0 {
		return
	}
	p.mu.seq++
	header := p.header()
	msg := p.mu.open.seal(&header, p.nonce, p.mu.seq)
	p.mu.queue = append(p.mu.queue, msg)
	p.m.batchEvents.Update(float64(msg.events))
}

// header returns a batch of now, without events.
func (p *Publisher) header() event.Batch {
	return event.Batch{
		Space: p.cfg.Space, Worker: p.cfg.Worker, Incarnation: p.cfg.Incarnation,
		Published: time.Now().UnixNano(), CountCopies: p.cfg.CountCopies,
	}
}

func (p *Publisher) wakeSender() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// refuse notes whether the stream has refused events for StreamWait: callers do not wait
// for room then.
func (p *Publisher) refuse(now bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.refused == now {
		return
	}
	p.mu.refused = now
	if now {
		p.lookAgainLocked()
		p.m.refusing.Inc()
		p.cfg.Log.Warn("the stream refuses events: replicas are told to ask this process for them", "subject", p.subject, "since", p.cfg.StreamWait)
	} else {
		p.m.refusing.Dec()
		p.cfg.Log.Info("the stream takes events again", "subject", p.subject)
	}
}

// resolve notes that the message is acknowledged or given up.
func (p *Publisher) resolve(msg *message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pos := range msg.last {
		r := p.mu.ranks[pos.DPRank]
		r.resolved = max(r.resolved, pos.ID)
	}
	p.mu.pending -= msg.cost
	p.m.pending.Add(-float64(msg.cost))
	p.lookAgainLocked()
	if p.mu.pending == 0 {
		for _, r := range p.mu.ranks { // events dropped in between are resolved too
			r.resolved = r.last
		}
	}
	p.mu.resolved++
	for len(p.mu.flushes) > 0 && p.mu.flushes[0].seq <= p.mu.resolved {
		close(p.mu.flushes[0].done)
		p.mu.flushes = p.mu.flushes[1:]
	}
}

// Flush sends what waits and returns once everything accepted before the call
// is acknowledged, or ctx ends.
func (p *Publisher) Flush(ctx context.Context) error {
	p.mu.Lock()
	p.sealLocked()
	if p.mu.resolved == p.mu.seq {
		p.mu.Unlock()
		return nil
	}
	f := flush{p.mu.seq, make(chan struct{})}
	p.mu.flushes = append(p.mu.flushes, f)
	p.mu.Unlock()
	p.wakeSender()
	select {
	case <-f.done:
		return nil
	case <-p.done:
		return ErrClosed
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mu.flushes = slices.DeleteFunc(p.mu.flushes, func(g flush) bool { return g == f })
		return fmt.Errorf("publish: %d bytes of events are not acknowledged: %w", p.mu.pending, ctx.Err())
	}
}

// Close accepts nothing more, flushes until ctx ends, stops the sender, and
// unregisters the worker if it is registered. An error means that not everything
// is acknowledged, or that the worker's lease has to run out. Closing twice is
// fine.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	again := p.mu.closing
	p.mu.closing = true
	p.lookAgainLocked()
	p.mu.Unlock()
	if again {
		<-p.done
		return nil
	}
	err := p.Flush(ctx)
	p.cancel()
	<-p.done
	if p.asked != nil {
		_ = p.asked.Unsubscribe() // it fails if the connection is closed: then nobody asks
	}
	p.out.close()
	p.mu.Lock()
	p.m.pending.Add(-float64(p.mu.pending))
	p.mu.Unlock()
	return errors.Join(err, p.unregister(ctx))
}
