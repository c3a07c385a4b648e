package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// This file is how a reader knows that its position is one of the stream's, what
// it does if it is not, and how it tells that it does not get on.

// mark is what of a stream was read, as others than the reading goroutine see it.
type mark struct {
	created  time.Time // of the stream
	read     uint64    // the last sequence that was read, or passed over
	readAt   time.Time // when the stream stored that message; zero: not known
	compared bool      // the position was compared with the stream
}

func (r *reader) mark() mark {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.mark
}

func (r *reader) position() stream.Position {
	return stream.Position{Seq: r.next - 1, Created: r.mark().created, Stored: r.lastAt}
}

// follow goes on from the position, which is one of the stream's, or from the
// first message if that is later: what publishers numbered in between shows as
// gaps.
func (r *reader) follow(info *stream.Info) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next < info.FirstSeq {
		r.mu.begin += info.FirstSeq - r.next // what is gone is not read
		r.passLocked(info.FirstSeq-1, time.Time{})
	}
	r.mu.created, r.mu.compared = info.Created, true
	r.reads(info.Created)
	r.mu.end = max(r.mu.read, info.LastSeq)
	r.end.Store(r.mu.end)
}

// passLocked sets the position beyond what is not read.
func (r *reader) passLocked(seq uint64, stored time.Time) {
	r.next, r.lastAt = seq+1, stored
	r.mu.read, r.mu.readAt = seq, stored
	r.window.skipTo(seq, stored)
}

// The reasons for which a session ends because of where the stream stands.
var (
	errVoid  = errors.New("the position in the stream is void")
	errMoved = errors.New("the stream does not end where it was read to")
	errIdle  = errors.New("the stream has more, and none of it has come")
)

// compareWithStream compares what the stream says of itself with what was read before it was
// asked. If they do not fit the session ends, and the next one sees to it: a
// consumer beyond the end of a stream that was rolled back waits for ever.
func (r *reader) compareWithStream(info *stream.Info, before mark) {
	now := time.Now()
	p := r.window.progress()
	if before.compared {
		r.endsAt(info.Created, info.LastSeq)
	}
	r.mu.Lock()
	r.mu.end, r.mu.clock = max(r.mu.read, info.LastSeq), clock{info.At, now}
	r.mu.idle.look(now, r.mu.read, p.pos, r.mu.end)
	r.end.Store(r.mu.end)
	var doubt error
	switch {
	case !before.compared || !r.mu.compared:
	case r.mu.idle.stalled(now, r.cfg.StallAfter, r.mu.read, p.pos) != nil && p.inFlight == 0 && r.mu.loop.since.IsZero():
		doubt = errIdle // nobody here is at work: a new consumer may get on
	case info.FirstSeq > r.mu.read+1:
		doubt = errTrimmed
	case !info.Created.Equal(before.created) || info.LastSeq < before.read:
		doubt = errMoved
	case info.LastSeq == before.read && info.FirstSeq <= before.read && !before.readAt.IsZero() &&
		!info.LastTime.Equal(before.readAt) && !info.LastTime.Equal(r.mu.doubted):
		// Looked into once: the server may have taken the last message out.
		doubt, r.mu.doubted = errMoved, info.LastTime
	}
	r.mu.Unlock()
	if doubt != nil {
		select {
		case r.sessionEnd <- doubt:
		default:
		}
	}
}

// clock is what the server's said last, and when: streams store messages by it, and it need not be this machine's.
type clock struct{ server, heard time.Time }

// read returns what time it is by the server, or by now if it has not said.
func (c clock) read(now time.Time) time.Time {
	if c.server.IsZero() {
		return now
	}
	return c.server.Add(now.Sub(c.heard))
}

// restartPause puts off what a void position costs when it comes again and again, as
// between two servers behind one name: every publisher is asked for each.
type restartPause struct {
	last time.Time
	wait time.Duration // from then on
}

// The waits between two void positions, and after how many of them it is
// forgotten.
const (
	leastRestartWait  = time.Second
	mostRestartWait   = time.Minute
	restartsForgotten = 10
)

// remaining returns how long the next one is to wait. It notes one that need not.
func (v *restartPause) remaining(now time.Time) time.Duration {
	since := now.Sub(v.last)
	switch {
	case v.last.IsZero() || since >= restartsForgotten*v.wait:
		v.wait = leastRestartWait
	case since < v.wait:
		return v.wait - since
	default:
		v.wait = min(2*v.wait, mostRestartWait)
	}
	v.last = now
	return 0
}

// restartFromStart sets the reader to the stream's start, and asks publishers what their
// ranks hold: what was read may not be in the stream any more, or come again.
// ctx is the reader's: none of them may be left out.
func (r *reader) restartFromStart(ctx context.Context, info *stream.Info, why string) error {
	now := time.Now()
	if left := r.restartPause.remaining(now); left > 0 {
		return fmt.Errorf("%w again, and waited for for %v: %s", errVoid, left.Round(time.Millisecond), why)
	}
	r.m.voidedPosition.Inc()
	r.cfg.Log.Warn("the position in the stream is void, reading it from its start; every publisher is asked for what it holds",
		"stream", r.name, "after", r.next-1, "reason", why)
	r.reads(info.Created)
	for _, l := range r.partitions {
		select {
		case l.inbox <- func(ctx context.Context) { l.distrustPositions(ctx, r.source, info.LastSeq) }:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next, r.lastAt = 1, time.Time{}
	r.window.restart(0, time.Time{})
	r.mu.mark = mark{created: info.Created}
	r.mu.begin, r.mu.end, r.mu.voided = 0, info.LastSeq, now
	r.mu.target = min(r.mu.target, info.LastSeq)
	return nil
}

// loop is sessions that end without a message, although the server answers.
type loop struct {
	since time.Time // zero: there is none
	err   error     // of the last one
}

// steadyAfter is how long a session has to last for being none of a loop.
const steadyAfter = 2 * time.Second

// stalled returns an error if the loop has lasted for so long.
func (l *loop) stalled(now time.Time, after time.Duration) error {
	if l.since.IsZero() || now.Sub(l.since) < after {
		return nil
	}
	return fmt.Errorf("reading has begun again and again for %v without a message: %w", now.Sub(l.since).Round(time.Second), l.err)
}

// idle is a stream that has more while nothing of it is read or applied.
type idle struct {
	since     time.Time // when it was first seen so; zero: it was last seen read to its end
	read, pos uint64    // as of then
}

// look notes how far reading and applying are, and where the stream ends.
func (i *idle) look(now time.Time, read, pos, end uint64) {
	switch {
	case pos >= end:
		*i = idle{}
	case i.since.IsZero() || read != i.read || pos != i.pos:
		*i = idle{now, read, pos}
	}
}

// stalled returns an error if it has been so for so long.
func (i *idle) stalled(now time.Time, after time.Duration, read, pos uint64) error {
	if i.since.IsZero() || read != i.read || pos != i.pos || now.Sub(i.since) < after {
		return nil
	}
	return fmt.Errorf("%w for %v: it was read to %d and applied to %d", errIdle, now.Sub(i.since).Round(time.Second), read, pos)
}

// failed notes how a session ended.
func (r *reader) failed(err error) {
	away := serverAway(r.cfg.Conn, err)
	err = obs.Plain(err) // it is shown
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.err = err
	switch {
	case away:
		r.mu.loop = loop{}
	case r.mu.loop.since.IsZero():
		r.mu.loop = loop{time.Now(), err}
	default:
		r.mu.loop.err = err
	}
}

// serverAway reports whether a session ended because there is nothing to read
// from at the moment: that the index is as of before is all that can be said.
func serverAway(nc *nats.Conn, err error) bool {
	if stream.Unanswered(err) {
		return true
	}
	for _, e := range []error{errReconnected, jetstream.ErrNoHeartbeat, jetstream.ErrStreamNotFound, nats.ErrNoResponders} {
		if errors.Is(err, e) {
			return true
		}
	}
	return !nc.IsConnected()
}

// opened notes that there is something to read from.
func (r *reader) opened() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.err = nil
}

// progressed notes that sessions do not end again and again.
func (r *reader) progressed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.loop = loop{}
}
