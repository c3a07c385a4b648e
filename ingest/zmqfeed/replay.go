package zmqfeed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
)

var (
	errHole     = errors.New("the replay has a hole")
	errNoReplay = errors.New("the engine's replay does not answer to the end")
	errTooLate  = errors.New("the replay begins after what is asked for")
)

// endOfReplay is the number in a replay's last reply.
const endOfReplay = 1<<64 - 1

// answer brings what the rank asks for, until it asks for nothing. An error means that
// the session is over.
func (s *session) answer(ctx context.Context) error {
	f := s.f
	for f.asked != nil && !f.over && ctx.Err() == nil {
		if err := s.answerOne(ctx); err != nil {
			return err
		}
	}
	if f.over {
		return errRestarted
	}
	return ctx.Err()
}

// answerOne gives the rank what it asked for: what was sent since, or all that the engine
// holds, where that says more.
func (s *session) answerOne(ctx context.Context) error {
	f := s.f
	q := *f.asked
	f.asked = nil
	sleep(ctx, time.Until(q.NotBefore))
	asked := false
	whole := func(replayed bool) bool {
		if asked || f.cfg.Snapshot == "" || !f.rank.Wanting(replayed) {
			return false
		}
		asked = true
		return s.snapshot(ctx) == nil
	}
	if whole(f.cfg.Replay == "") {
		return nil
	}
	end := func(k *follow.Rank, st *follow.Step) { k.Ended(st, follow.Result{}) }
	if f.cfg.Replay != "" {
		err := s.replayed(ctx, q, !asked && f.cfg.Snapshot != "")
		if errors.Is(err, errTooLate) {
			if s.snapshot(ctx) == nil {
				return nil
			}
			f.Step(func(k *follow.Rank, st *follow.Step) { q = k.Again(st) })
			err = s.replayed(ctx, q, false)
		}
		if err == nil && whole(true) {
			return nil
		}
		if end = (*follow.Rank).ReplayEnd; err != nil {
			end = func(k *follow.Rank, st *follow.Step) { k.Ended(st, follow.Result{Err: err}) }
		}
	} else if asked {
		end = func(k *follow.Rank, st *follow.Step) { k.Ended(st, follow.Result{Err: errNoSnapshot}) }
	}
	switch {
	case f.over:
		return errRestarted
	case ctx.Err() != nil:
		return ctx.Err()
	case s.broken.Load():
		return errBroken
	}
	f.Step(end)
	return nil
}

// replayed gives the rank what was sent since, asking the engine again from where it
// stopped. With early it is of no use if it begins too late.
func (s *session) replayed(ctx context.Context, q follow.Question, early bool) error {
	f := s.f
	for failures := 0; failures < f.cfg.ReplayAttempts; {
		before := f.Next()
		for ctx.Err() == nil { // what waits meanwhile comes with the next replay
			wait := f.replays.Take(time.Now(), f.cfg.ReplayRate, time.Second)
			if wait <= 0 {
				break
			}
			sleep(ctx, wait)
		}
		err := errBroken
		if !s.broken.Load() {
			err = s.replay(ctx, q, early)
		}
		switch {
		case f.over:
			return errRestarted
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			f.count(func(c *Stats) { c.ReplayDown = false })
			if s.broken.Load() {
				return errBroken
			}
			return nil
		case s.broken.Load():
			return errBroken
		case errors.Is(err, errTooLate):
			return err
		case errors.Is(err, errHole):
			f.count(func(c *Stats) { c.ReplayHoles++ })
		default:
			f.count(func(c *Stats) { c.ReplayBad, c.ReplayDown = c.ReplayBad+1, true })
		}
		if f.Next() != before {
			failures = 0
		} else {
			failures++
			sleep(ctx, time.Duration(failures)*f.cfg.RetryMin)
		}
		f.Step(func(k *follow.Rank, st *follow.Step) { q = k.Again(st) })
	}
	return errNoReplay
}

// converse talks with an engine's endpoint on a connection of its own: what comes late of an
// answer that was given up cannot be taken for the next one's. It waits for its turn.
func (f *Feed) converse(ctx context.Context, endpoint string, o zmtp.Options, talk func(*zmtp.Conn) error) error {
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
	o.Handshake = f.cfg.Dial
	conn, err := f.dial(ctx, endpoint, zmtp.Dealer, o)
	if err != nil {
		return err
	}
	defer conn.Close()                                          //nolint:errcheck // nothing is left to send
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // the read tells
	defer stop()
	return talk(conn)
}

// replay asks once.
func (s *session) replay(ctx context.Context, q follow.Question, early bool) error {
	f := s.f
	f.count(func(c *Stats) { c.Replays++ })
	return f.converse(ctx, f.cfg.Replay, zmtp.Options{MaxMessage: f.cfg.MaxMessage}, func(conn *zmtp.Conn) error {
		if err := conn.WriteMessage(nil, binary.BigEndian.AppendUint64(nil, q.From-1)); err != nil {
			return fmt.Errorf("ask for a replay at %s: %w", f.cfg.Replay, err)
		}
		f.replaying = true
		defer func() {
			if f.replaying = false; f.reply.m.Cap() > spareBytes {
				f.reply = item{}
			}
		}()
		return f.readReplay(conn, early)
	})
}

// readReplay gives the rank the batches of an answer as they come.
func (f *Feed) readReplay(conn *zmtp.Conn, early bool) error {
	for ; ; early = false {
		if err := conn.SetReadDeadline(time.Now().Add(f.cfg.ReplayIdle)); err != nil {
			return err
		}
		it := &f.reply
		err := conn.ReadMessage(&it.m)
		it.oversize = errors.Is(err, zmtp.ErrTooLarge)
		if err != nil && !it.oversize {
			return fmt.Errorf("replay at %s: %w", f.cfg.Replay, err)
		}
		number, payload, ok := parseReply(&it.m)
		switch {
		case !ok:
			f.count(func(c *Stats) { c.Malformed++ })
			continue
		case number == endOfReplay && len(payload) == 0:
			return nil
		case early && number > f.Next():
			return errTooLate
		}
		it.set(f, number, payload)
		whole := true
		f.Step(func(k *follow.Rank, st *follow.Step) { whole = k.Replayed(st, &it.Batch) })
		switch {
		case f.over:
			return errRestarted
		case !whole:
			return errHole
		}
	}
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
	seq, payload = binary.BigEndian.Uint64(m.Frame(n-2)), m.Frame(n-1)
	return seq, payload, seq != endOfReplay || len(payload) == 0
}
