package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/pace"
	"github.com/kvatlas/kvatlas/internal/recovery"
	"github.com/kvatlas/kvatlas/shard"
)

// This file is what a recovery asks the publisher, and what it makes of the
// answers. One attempt goes from events to a dump, and from a dump to the events
// after it, once each: an answer that would lead around again ends it.

// Reasons for which an attempt ends without a result.
var (
	errBusy       = errors.New("the publisher is giving out another dump")
	errNoAnswer   = errors.New("the publisher does not answer")
	errNonsense   = errors.New("the publisher's answer has no meaning")
	errAround     = errors.New("the publisher's answers lead nowhere")
	errDumps      = errors.New("the publisher has no events but another dump, too soon after the last")
	errLong       = errors.New("the publisher's answers take too long together")
	errIndex      = errors.New("the index does not take the dump")
	errPartial    = errors.New("the publisher does not know what the rank holds")
	errSuperseded = errors.New("the rank's state has changed meanwhile")
)

// recoveryOutcomes are the errors' labels in the metrics.
var recoveryOutcomes = []struct {
	err  error
	name string
}{
	{errLong, "too_long"}, {errBusy, "busy"}, {errNoAnswer, "no_answer"}, {errNonsense, "malformed"}, {errAround, "around"},
	{errDumps, "dump_too_soon"}, {errPartial, "partial"}, {errSuperseded, "superseded"}, {context.Canceled, "cancelled"},
}

// recoveryOutcome is an error's label in the metrics.
func recoveryOutcome(err error) string {
	if err == nil {
		return "ok"
	}
	for _, o := range recoveryOutcomes {
		if errors.Is(err, o.err) {
			return o.name
		}
	}
	return "index"
}

// quotas are what publishers may be asked at the moment, by subject. One publisher may
// have many ranks, each with a recovery of its own, and what it has to give is bounded for
// all of them together; so the quota is the subject's, not the rank's. A full one says
// nothing that a new one would not: dropping those bounds the map by the publishers that
// were asked of late.
type quotas struct {
	sync.Mutex
	by    map[string]*pace.Quota
	clean int // look for full ones, which need not be kept, at that many
}

// take is Take of the subject's quota.
func (q *quotas) take(subject string, now time.Time, most int, span time.Duration) time.Duration {
	q.Lock()
	defer q.Unlock()
	if q.by == nil {
		q.by = make(map[string]*pace.Quota)
	}
	one := q.by[subject]
	if one == nil {
		if len(q.by) >= max(q.clean, 64) {
			for s, o := range q.by {
				if o.IsFull(now) {
					delete(q.by, s)
				}
			}
			q.clean = 2 * len(q.by)
		}
		one = new(pace.Quota)
		q.by[subject] = one
	}
	return one.Take(now, most, span)
}

// permit waits until the publisher may be asked.
func (v *rankRecovery) permit(ctx context.Context) error {
	for {
		wait := v.quotas.take(v.subject, v.now(), v.cfg.RecoverRate, time.Second)
		if wait <= 0 {
			return nil
		}
		select {
		case <-v.after(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// request asks the publisher once.
func (v *rankRecovery) request(ctx context.Context, q recovery.Request) (recovery.Reply, error) {
	if err := v.permit(ctx); err != nil {
		return recovery.Reply{}, err
	}
	v.rank.asked() // before the answer: one that never comes was a request, too
	begun := v.now()
	reply, err := v.exchange(ctx, q)
	if ctx.Err() == nil {
		v.places.outcome(v.subject, !errors.Is(err, errNoAnswer), begun, v.now(), v.cfg, rankSeed(v.seed, &v.id))
	}
	switch {
	case ctx.Err() != nil:
		// Its end tells more than what the exchange says of it: superseded, or too long.
		err = context.Cause(ctx)
	case err == nil:
		v.m.answered(reply.Kind.String())
		v.answered.Store(true)
		return reply, nil
	}
	v.m.answered(recoveryOutcome(err))
	return reply, err
}

func (v *rankRecovery) exchange(ctx context.Context, q recovery.Request) (recovery.Reply, error) {
	q.DPRank = v.id.DPRank
	ctx, cancel := context.WithTimeout(ctx, v.cfg.RecoverTimeout)
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
	return reply, nil
}

// attempt asks page after page until the rank is where its publisher is. It
// holds its place for RecoverLimit at most.
//
// A publisher may answer otherwise than it was asked: it begins anew, forgets its events,
// or gives a dump where events no longer reach back. dumped and back bound that: one dump,
// and one change from events to a dump. An attempt with an answer that fits neither ends,
// and the next one begins after a pause, so that no publisher, whatever it says, is asked
// in a circle.
func (v *rankRecovery) attempt() error {
	ctx, cancel := context.WithTimeoutCause(v.ctx, v.cfg.RecoverLimit, errLong)
	defer cancel()
	dumped, back := false, false
	// dumpInstead asks for a dump, for events are not to be had.
	dumpInstead := func(why string) error {
		if dumped || back || v.from == 0 {
			return fmt.Errorf("%w: %s, asked for event %d", errAround, why, v.from)
		}
		back, v.from = true, 0
		return nil
	}
	for {
		reply, err := v.request(ctx, recovery.Request{From: v.from})
		if err != nil {
			return err
		}
		anew := reply.Incarnation != v.incarnation // the engine runs anew: from its beginning
		switch reply.Kind {
		case recovery.Busy:
			return errBusy
		case recovery.TooNew, recovery.Invalid: // it has forgotten what it sent
			if err := dumpInstead(reply.Kind.String()); err != nil {
				return err
			}
		case recovery.Dump:
			switch {
			case dumped:
				return fmt.Errorf("%w: a dump again, asked for event %d", errAround, v.from)
			case reply.Incomplete && v.hadPosition && !anew:
				// A publisher that was itself started anew, beside an engine that was not: what
				// the rank has from its events is more than that.
				return errPartial
			case v.now().Before(v.dumps):
				// A dump costs the publisher and the index all that the rank holds.
				return errDumps
			}
			if err := v.dump(ctx, reply); err != nil {
				return err
			}
			dumped = true
		case recovery.Events:
			if anew || v.from == 0 {
				if err := dumpInstead("events of another run"); err != nil {
					return err
				}
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

// events checks a page of events and hands it to the partition.
func (v *rankRecovery) events(reply *recovery.Reply) error {
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
	// Each event is looked at before any is applied: a page with a hole, or of another rank,
	// would count as the events that it lacks.
	next := v.from
	for i := range b.Events {
		if b.Events[i].ID != next || b.Events[i].DPRank != v.id.DPRank {
			return fmt.Errorf("%w: event %d of rank %d where event %d of rank %d follows", errNonsense,
				b.Events[i].ID, b.Events[i].DPRank, next, v.id.DPRank)
		}
		next++
	}
	if !v.post(func(ctx context.Context) { v.partition.recovered(ctx, v.rank, b) }) {
		return errSuperseded
	}
	v.from = next
	return nil
}

// dump gets a dump, of which first is the first part, and has it replace the
// rank's state.
func (v *rankRecovery) dump(ctx context.Context, first recovery.Reply) error {
	index, ok := v.partition.index.(Replacer)
	if !ok {
		return fmt.Errorf("%w: it cannot replace a rank", errIndex)
	}
	state, err := index.Replace(ctx, shard.RankID{Worker: v.id.Worker, DPRank: v.id.DPRank})
	if err != nil {
		return fmt.Errorf("%w: %w", errIndex, err)
	}
	// The dump is loaded beside what lookups see, which takes as long as it takes. It is the
	// partition that decides, in the order of the rank's events, whether it still is what the
	// rank needs: a message may have come meanwhile that makes it old.
	d := &dump{state: state, Dump: follow.Dump{
		Incarnation: first.Incarnation, Last: first.Last, Lossy: first.StreamIncomplete, Partial: first.Incomplete,
	}}
	err = v.load(ctx, d, first)
	committed := false
	if err == nil {
		v.post(func(ctx context.Context) {
			if committed = v.partition.replace(ctx, v.rank, d); committed {
				v.dumps = v.rank.follow.NoDump()
			}
		})
		if !committed {
			err = errSuperseded
		}
	}
	if !committed {
		// Also when the attempt's time is over: what is hidden in the index stays there else.
		if abort := state.Abort(context.WithoutCancel(v.ctx)); abort != nil {
			err = fmt.Errorf("%w: %w", errIndex, abort)
		}
		return err
	}
	v.dumped = true
	v.refused = d.outcome.Refused > 0
	v.incarnation, v.from = d.Incarnation, d.Last+1
	return nil
}

// load fills the replacement with the dump's parts.
func (v *rankRecovery) load(ctx context.Context, d *dump, reply recovery.Reply) error {
	var frames recovery.Frames
	// Blocks whose position other workers may tell. They come last in a dump, and are
	// attached after all else: some hang below blocks that the dump itself brings.
	var orphans []event.Event
	var orphanCopies [][]uint32
	number, parts, last := reply.Dump, reply.Parts, reply.Last
	for part := uint32(0); ; {
		if len(reply.Body) == 0 && parts > 1 {
			return fmt.Errorf("%w: part %d of %d is empty", errNonsense, part, parts)
		}
		err := frames.Add(reply.Body, func(b *event.Batch, copies [][]uint32) error {
			if b.Space != v.id.Space || b.Worker != v.id.Worker || b.Incarnation != d.Incarnation {
				return fmt.Errorf("%w: a dump of another publisher", errNonsense)
			}
			n := slices.IndexFunc(b.Events, func(ev event.Event) bool { return ev.Incomplete && ev.Group == 0 })
			if n < 0 {
				n = len(b.Events)
			}
			if slices.ContainsFunc(b.Events, func(ev event.Event) bool { return ev.DPRank != v.id.DPRank }) {
				return fmt.Errorf("%w: a dump of another rank", errNonsense)
			}
			for i, ev := range b.Events[n:] { // the frame's memory is used again
				ev.Engine, ev.Local = slices.Clone(ev.Engine), slices.Clone(ev.Local)
				orphans, orphanCopies = append(orphans, ev), append(orphanCopies, slices.Clone(copies[n+i]))
			}
			out, err := d.state.Add(ctx, b.Events[:n], copies[:n])
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
			if reply, err = v.request(ctx, recovery.Request{Dump: number, Part: part}); err == nil {
				break
			}
			if try == v.cfg.RecoverAttempts || ctx.Err() != nil {
				return err
			}
			v.pause(err)
		}
		if reply.Kind == recovery.Busy {
			return errBusy
		}
		if reply.Kind != recovery.Dump || reply.Dump != number || reply.Part != part || reply.Last != last || reply.Incarnation != d.Incarnation {
			return fmt.Errorf("%w: not part %d of the dump", errNonsense, part)
		}
	}
	if err := frames.Finish(); err != nil {
		return fmt.Errorf("%w: %w", errNonsense, err)
	}
	out, err := d.state.Finish(ctx)
	d.outcome.Add(core.Outcome{Refused: out.Refused})
	if err == nil && len(orphans) > 0 {
		out, err = d.state.Attach(ctx, orphans, orphanCopies)
		d.outcome.Add(out)
		v.m.applied(core.Outcome{Inferred: out.Inferred, UnknownBlock: out.UnknownBlock})
		v.unresolved = out.UnknownParent > 0
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errIndex, err)
	}
	return nil
}
