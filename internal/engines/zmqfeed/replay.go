package zmqfeed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
)

var errHole = errors.New("the replay has a hole")

// endOfReplay is the number in a replay's last reply.
const endOfReplay = 1<<64 - 1

// catchUp is replayed, with the phases told.
func (s *session) catchUp(ctx context.Context, need uint64) (bool, error) {
	if s.f.cfg.Replay == "" {
		return false, nil
	}
	s.f.h.State(State{Phase: CatchingUp})
	complete, err := s.replayed(ctx, need)
	if err == nil && s.synced {
		s.f.h.State(State{Phase: Live})
	}
	return complete, err
}

// replayed applies everything that the engine's replay has after the last batch,
// asking again from where it stopped; what is missing are the batches before need,
// as far as is known. It reports whether it came to the end. An error means that
// the session is over: the engine restarted, or ctx ended.
func (s *session) replayed(ctx context.Context, need uint64) (complete bool, err error) {
	f := s.f
	if f.cfg.Replay == "" || !f.ask.Ready(time.Now()) {
		return false, nil
	}
	start := f.next()
	for failures := 0; failures < f.cfg.ReplayAttempts; {
		before := f.next()
		for ctx.Err() == nil { // what waits meanwhile comes with the next replay
			wait := f.replays.Take(time.Now(), f.cfg.ReplayRate, time.Second)
			if wait <= 0 {
				break
			}
			sleep(ctx, wait)
		}
		err := errBroken
		if !s.broken.Load() {
			err = s.replay(ctx)
		}
		switch {
		case s.broken.Load() && !errors.Is(err, errRestarted) && ctx.Err() == nil:
			return false, errBroken
		case err == nil:
			if f.next() != start || f.next() >= need {
				f.ask.Progress()
			} else {
				f.putOff(f.cfg.RetryMin) // it does not have what it sent
			}
			return true, nil
		case ctx.Err() != nil:
			return false, ctx.Err()
		case errors.Is(err, errRestarted):
			return false, err
		case errors.Is(err, errHole):
			f.counters.replayHoles.Add(1)
		default:
			f.counters.replayBad.Add(1)
		}
		if f.next() != before {
			failures = 0
			continue
		}
		failures++
		sleep(ctx, time.Duration(failures)*f.cfg.RetryMin)
	}
	f.putOff(f.cfg.ReplayPause)
	return false, ctx.Err()
}

// putOff puts the next replay off, by a time between least and ReplayPause.
func (f *Feed) putOff(least time.Duration) {
	now := time.Now()
	f.ask.Later(now, now, least, max(least, f.cfg.ReplayPause), f.seed)
}

// replay asks once, on a connection of its own: what comes late of a reply that
// was given up cannot be taken for the next one's.
func (s *session) replay(ctx context.Context) error {
	f := s.f
	if l := f.cfg.Limit; l != nil {
		select {
		case l.slots <- struct{}{}:
			defer func() { <-l.slots }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.ReplayLimit)
	defer cancel()
	f.counters.replays.Add(1)
	conn, err := f.dial(ctx, f.cfg.Replay, zmtp.Dealer, zmtp.Options{MaxMessage: f.cfg.MaxMessage, Handshake: f.cfg.Dial})
	if err != nil {
		return err
	}
	defer conn.Close()                                          //nolint:errcheck // nothing is left to send
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // the read tells
	defer stop()
	from := uint64(0)
	if f.have {
		from = f.last // to compare it
	}
	if err := conn.WriteMessage(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return fmt.Errorf("ask for a replay at %s: %w", f.cfg.Replay, err)
	}
	for first := true; ; {
		if err := conn.SetReadDeadline(time.Now().Add(f.cfg.ReplayIdle)); err != nil {
			return err
		}
		err := conn.ReadMessage(&f.reply)
		oversize := errors.Is(err, zmtp.ErrTooLarge)
		if err != nil && !oversize {
			return fmt.Errorf("replay at %s: %w", f.cfg.Replay, err)
		}
		seq, payload, ok := parseReply(&f.reply)
		switch {
		case !ok:
			f.counters.malformed.Add(1)
		case seq == endOfReplay && len(payload) == 0:
			return s.replayEnd(first)
		case seq < from:
			f.counters.replayExtra.Add(1)
		case first:
			first, f.answered = false, true
			if err := s.replayStart(seq, payload, oversize); err != nil {
				return err
			}
		case seq > f.next():
			return errHole
		case seq < f.next():
			f.counters.replayExtra.Add(1)
		default:
			f.apply(seq, payload, oversize, true)
		}
	}
}

// replayStart takes a replay's first batch: the last applied one, if the engine
// still has it. The publisher's queue for a new connection is empty, so what is
// missing before the first batch is missing from its buffer.
func (s *session) replayStart(seq uint64, payload []byte, oversize bool) error {
	f := s.f
	if !f.have || seq != f.last {
		f.skipTo(seq, Retention)
		f.apply(seq, payload, oversize, true)
		return nil
	}
	if f.printed && !oversize && xxh3.Hash(payload) != f.print {
		if err := f.restart(Differs); err != nil {
			return err
		}
		return errRestarted
	}
	f.samePublisher = true
	return nil
}

// replayEnd takes a replay's end. The engine keeps at least its newest batch, so
// a replay without any is that of a process that has not come as far as the
// last applied one. But if it keeps none at all every replay is so: then only a
// new connection counts.
func (s *session) replayEnd(empty bool) error {
	f := s.f
	if !empty || !f.have || !f.answered && s.synced {
		return nil
	}
	if err := f.restart(Shorter); err != nil {
		return err
	}
	return errRestarted
}

// parseReply reads both forms of reply: an empty frame, the topic or not, the
// number, the payload. With the default topic there are two empty frames.
func parseReply(m *zmtp.Message) (seq uint64, payload []byte, ok bool) {
	n := m.Len()
	start := 0
	if n > 0 && len(m.Frame(0)) == 0 {
		start = 1
	}
	if n-start < 2 || n-start > 3 || len(m.Frame(n-2)) != 8 {
		return 0, nil, false
	}
	return binary.BigEndian.Uint64(m.Frame(n - 2)), m.Frame(n - 1), true
}
