package ingest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/recovery"
	"github.com/kvatlas/kvatlas/shard"
)

// Replacer is an Applier that can replace a rank's state as a whole. *shard.Space
// is one. With another Applier a rank is recovered by events only.
type Replacer interface {
	Replace(ctx context.Context, id shard.RankID) (*shard.Replacement, error)
}

// recoverer asks publishers for what ranks missed. Its methods are safe for
// concurrent use; each recovery has a goroutine, which ends with ctx.
type recoverer struct {
	cfg     *Config
	m       *meters
	ctx     context.Context
	running *sync.WaitGroup
	slots   chan struct{} // one for each recovery that asks at the moment
	first   atomic.Int32  // recoveries under way of ranks of which nothing is known

	// What tests replace.
	ask   func(ctx context.Context, subject string, request []byte) ([]byte, error)
	after func(time.Duration) <-chan time.Time
	rand  func() float64
}

func newRecoverer(ctx context.Context, cfg *Config, m *meters, running *sync.WaitGroup) *recoverer {
	return &recoverer{
		cfg: cfg, m: m, ctx: ctx, running: running, slots: make(chan struct{}, cfg.Recoveries),
		ask: func(ctx context.Context, subject string, request []byte) ([]byte, error) {
			msg, err := cfg.Conn.RequestWithContext(ctx, subject, request)
			if err != nil {
				return nil, err
			}
			return msg.Data, nil
		},
		after: time.After,
		rand:  rand.Float64,
	}
}

// backoff returns how long to wait before attempt n+1.
func (c *recoverer) backoff(n int) time.Duration {
	d := c.cfg.RecoverMax
	if n < 32 {
		d = min(d, c.cfg.RecoverMin<<n)
	}
	if d <= 0 {
		d = c.cfg.RecoverMax
	}
	return time.Duration(float64(d) * (0.5 + c.rand()/2))
}

// rescue is one rank's recovery. Its goroutine owns it, but for what the lane
// reads once it has ended.
type rescue struct {
	*recoverer
	lane    *lane
	rank    *rank // the lane's: not to be looked into
	id      RankID
	cause   Cause
	ctx     context.Context
	cancel  context.CancelFunc
	subject string

	incarnation uint64 // of the rank, 0: any
	known       bool   // the rank has a state
	from        uint64 // next event to ask for; 0: a dump
	busy        int

	full       bool // a dump was taken
	incomplete bool // the publisher says that it lacks something
	refused    bool // the memory budget refused some of the dump
	// unplaced: nobody knows the place of some blocks of an incomplete stream, or
	// of some that are known by name alone and whose content a worker may yet
	// tell that is being recovered for the first time.
	unplaced bool
}

// start begins a recovery of the lane's rank.
func (c *recoverer) start(l *lane, r *rank, cause Cause) *rescue {
	v := &rescue{
		recoverer: c, lane: l, rank: r, id: r.id, cause: cause,
		subject:     stream.RecoverSubject(c.cfg.Namespace, r.id.Space, r.id.Worker),
		incarnation: r.incarnation, from: r.next(), known: r.known,
	}
	if cause != Gap && cause != Retry || r.stale {
		v.from = 0
	}
	v.ctx, v.cancel = context.WithCancel(c.ctx)
	if !v.known {
		c.first.Add(1)
	}
	c.running.Go(v.run)
	return v
}

// Reasons for which an attempt ends without a result.
var (
	errBusy       = errors.New("the publisher is giving out another dump")
	errNoAnswer   = errors.New("the publisher does not answer")
	errNonsense   = errors.New("the publisher's answer has no meaning")
	errIndex      = errors.New("the index does not take the dump")
	errPartial    = errors.New("the publisher does not know what the rank holds")
	errSuperseded = errors.New("the rank's state has changed meanwhile")
)

// recoveryOutcome is an error's label in the metrics.
func recoveryOutcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, errBusy):
		return "busy"
	case errors.Is(err, errNoAnswer):
		return "no_answer"
	case errors.Is(err, errNonsense):
		return "malformed"
	case errors.Is(err, errPartial):
		return "partial"
	case errors.Is(err, errSuperseded):
		return "superseded"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	}
	return "index"
}

// run tries until the rank is recovered, or often enough.
func (v *rescue) run() {
	defer v.cancel()
	if !v.known {
		defer v.first.Add(-1)
	}
	begun := time.Now()
	v.m.recovering.Inc()
	var err error
	for attempt := 0; ; attempt++ {
		if attempt > 0 {
			select {
			case <-v.after(v.backoff(attempt - 1)):
			case <-v.ctx.Done():
			}
		}
		if err = v.slot(); err != nil {
			break
		}
		err = v.attempt()
		<-v.slots
		if err == nil || v.ctx.Err() != nil {
			break
		}
		v.m.recoveryRetries.Inc()
		if errors.Is(err, errBusy) && v.busy < maxBusy {
			v.busy++
			attempt = min(attempt, 3) // it is alive: that is no failure
		}
		if attempt+1 >= v.cfg.RecoverAttempts && !errors.Is(err, errBusy) || v.busy >= maxBusy {
			break
		}
	}
	if v.ctx.Err() != nil {
		err = context.Canceled
	}
	v.m.recovering.Dec()
	v.m.recovered(v.cause, recoveryOutcome(err), time.Since(begun))
	v.post(func(ctx context.Context) { v.lane.ended(ctx, v.rank, v, err) })
}

// maxBusy bounds how often a recovery waits for other ranks' dumps.
const maxBusy = 200

func (v *rescue) slot() error {
	select {
	case v.slots <- struct{}{}:
		if v.ctx.Err() != nil {
			<-v.slots
			return context.Canceled
		}
		return nil
	case <-v.ctx.Done():
		return context.Canceled
	}
}

// post has the lane call f, unless the recovery is no longer the rank's, and
// reports whether it was called.
func (v *rescue) post(f func(ctx context.Context)) bool {
	var claimed atomic.Bool // by the lane, or by who gives up
	called := make(chan bool, 1)
	select {
	case v.lane.inbox <- func(ctx context.Context) {
		if !claimed.CompareAndSwap(false, true) {
			return
		}
		mine := v.rank.active == v
		if mine {
			f(ctx)
		}
		called <- mine
	}:
	case <-v.ctx.Done():
		return false
	}
	select {
	case ok := <-called:
		return ok
	case <-v.ctx.Done():
		if claimed.CompareAndSwap(false, true) {
			return false
		}
		return <-called
	}
}

// request asks the publisher once.
func (v *rescue) request(q recovery.Request) (recovery.Reply, error) {
	q.DPRank = v.id.DPRank
	ctx, cancel := context.WithTimeout(v.ctx, v.cfg.RecoverTimeout)
	defer cancel()
	data, err := v.ask(ctx, v.subject, recovery.AppendRequest(nil, q))
	if err != nil {
		if errors.Is(err, nats.ErrNoResponders) {
			return recovery.Reply{}, fmt.Errorf("%w: nobody listens on %s", errNoAnswer, v.subject)
		}
		return recovery.Reply{}, fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	v.m.recoveryBytes.Add(len(data))
	reply, err := recovery.DecodeReply(data)
	if err != nil {
		return reply, fmt.Errorf("%w: %w", errNonsense, err)
	}
	v.incomplete = reply.Incomplete
	return reply, nil
}

// attempt asks page after page until the rank is where its publisher is.
func (v *rescue) attempt() error {
	for {
		reply, err := v.request(recovery.Request{From: v.from})
		if err != nil {
			return err
		}
		if reply.Incarnation != v.incarnation && reply.Kind != recovery.Busy && reply.Kind != recovery.Dump {
			v.incarnation = 0 // the engine runs anew: from its beginning
		}
		switch reply.Kind {
		case recovery.Busy:
			return errBusy
		case recovery.TooNew, recovery.Invalid:
			if v.from == 0 {
				return fmt.Errorf("%w: %s for a dump", errNonsense, reply.Kind)
			}
			v.from = 0 // the publisher has forgotten what it sent
		case recovery.Dump:
			if reply.Incomplete && v.known && reply.Incarnation == v.incarnation {
				return errPartial // what the rank has is more than that
			}
			if err := v.dump(reply); err != nil {
				return err
			}
		case recovery.Events:
			if v.incarnation != reply.Incarnation {
				v.from = 0
				v.incarnation = reply.Incarnation
				continue
			}
			if err := v.events(&reply); err != nil {
				return err
			}
			if !reply.More {
				return nil
			}
		}
	}
}

// events checks a page of events and hands it to the lane.
func (v *rescue) events(reply *recovery.Reply) error {
	if len(reply.Body) == 0 {
		if reply.More {
			return fmt.Errorf("%w: an empty page before another", errNonsense)
		}
		return nil
	}
	b, err := new(event.Decoder).Decode(reply.Body)
	if err != nil {
		return fmt.Errorf("%w: %w", errNonsense, err)
	}
	if b.Space != v.id.Space || b.Worker != v.id.Worker || b.Incarnation != v.incarnation || len(b.Events) == 0 {
		return fmt.Errorf("%w: events of another publisher", errNonsense)
	}
	next := v.from
	for i := range b.Events {
		if b.Events[i].ID != next || b.Events[i].DPRank != v.id.DPRank {
			return fmt.Errorf("%w: event %d of rank %d where event %d of rank %d follows", errNonsense,
				b.Events[i].ID, b.Events[i].DPRank, next, v.id.DPRank)
		}
		next++
	}
	if !v.post(func(ctx context.Context) { v.lane.recovered(ctx, v.rank, b) }) {
		return errSuperseded
	}
	v.from = next
	return nil
}

// dump gets a dump, of which first is the first part, and has it replace the
// rank's state.
func (v *rescue) dump(first recovery.Reply) error {
	index, ok := v.lane.index.(Replacer)
	if !ok {
		return fmt.Errorf("%w: it cannot replace a rank", errIndex)
	}
	state, err := index.Replace(v.ctx, shard.RankID{Worker: v.id.Worker, DPRank: v.id.DPRank})
	if err != nil {
		return fmt.Errorf("%w: %w", errIndex, err)
	}
	d := &dump{state: state, incarnation: first.Incarnation, last: first.Last, lossy: first.Lossy}
	err = v.load(d, first)
	committed := false
	if err == nil {
		v.post(func(ctx context.Context) { committed = v.lane.replace(ctx, v.rank, d) })
		if !committed {
			err = errSuperseded
		}
	}
	if !committed {
		if abort := state.Abort(context.WithoutCancel(v.ctx)); abort != nil {
			err = fmt.Errorf("%w: %w", errIndex, abort)
		}
		return err
	}
	v.full = true
	v.refused = d.outcome.Refused > 0
	v.incarnation, v.from = d.incarnation, d.last+1
	return nil
}

// load fills the replacement with the dump's parts.
func (v *rescue) load(d *dump, reply recovery.Reply) error {
	var frames recovery.Frames
	var loose []event.Event // blocks whose place other workers may tell
	var looseCopies [][]uint32
	number, parts, last := reply.Dump, reply.Parts, reply.Last
	for part := uint32(0); ; {
		err := frames.Add(reply.Body, func(b *event.Batch, copies [][]uint32) error {
			if b.Space != v.id.Space || b.Worker != v.id.Worker || b.Incarnation != d.incarnation {
				return fmt.Errorf("%w: a dump of another publisher", errNonsense)
			}
			n := slices.IndexFunc(b.Events, func(ev event.Event) bool { return ev.Incomplete })
			if n < 0 {
				n = len(b.Events)
			}
			for i, ev := range b.Events[n:] { // the frame's memory is used again
				ev.Engine, ev.Local = slices.Clone(ev.Engine), slices.Clone(ev.Local)
				loose, looseCopies = append(loose, ev), append(looseCopies, slices.Clone(copies[n+i]))
			}
			out, err := d.state.Add(v.ctx, b.Events[:n], copies[:n])
			d.outcome.Add(out)
			if err != nil {
				return fmt.Errorf("%w: %w", errIndex, err)
			}
			return nil
		})
		switch {
		case errors.Is(err, errIndex) || errors.Is(err, errNonsense):
			return err
		case err != nil:
			return fmt.Errorf("%w: %w", errNonsense, err)
		}
		if part++; part == parts {
			break
		}
		// A lost part is asked for again: beginning anew would cost them all.
		for try := 0; ; try++ {
			if reply, err = v.request(recovery.Request{Dump: number, Part: part}); err == nil {
				break
			}
			if try == v.cfg.RecoverAttempts || v.ctx.Err() != nil {
				return err
			}
			select {
			case <-v.after(v.backoff(try)):
			case <-v.ctx.Done():
			}
		}
		if reply.Kind == recovery.Busy {
			return errBusy
		}
		if reply.Kind != recovery.Dump || reply.Dump != number || reply.Part != part || reply.Last != last || reply.Incarnation != d.incarnation {
			return fmt.Errorf("%w: not part %d of the dump", errNonsense, part)
		}
	}
	if err := frames.Finish(); err != nil {
		return fmt.Errorf("%w: %w", errNonsense, err)
	}
	out, err := d.state.Finish(v.ctx)
	d.outcome.Add(core.Outcome{Refused: out.Refused})
	if err == nil && len(loose) > 0 {
		others := v.first.Load() > 1 || v.known && v.first.Load() > 0
		out, err = d.state.Attach(v.ctx, loose, looseCopies)
		d.outcome.Add(out)
		v.m.inferred.Add(out.Inferred)
		v.m.unknownBlock.Add(out.UnknownBlock)
		v.unplaced = out.UnknownParent > 0 || out.UnknownBlock > 0 && others
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errIndex, err)
	}
	return nil
}
