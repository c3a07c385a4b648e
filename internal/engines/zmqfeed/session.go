package zmqfeed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
)

const (
	spareMessages = 32      // kept to be read into again
	spareBytes    = 1 << 20 // that a spare one may hold
	maxBlind      = 2       // probes in a row that may find what a silent connection did not bring
)

// errBroken ends a session whose connection is gone while what came of it waits,
// when a replay is asked for: who answers may be another process than the one that
// said what waits. The next session knows, and has it replayed if it is the same.
var errBroken = errors.New("the subscription broke")

var errSilent = errors.New("the subscription brings nothing, though the engine publishes")

// session is one subscription, from its connection to its end. Two goroutines: the
// reader takes from the socket, so that the engine's high-water mark is not what drops
// messages while a batch is applied or a replay runs; the feed's own does all else. They
// share what says so below, and the feed's counters.
//
// The engine's protocol has no incarnation. That a number falls is all that a restart
// looks like, and so does a message that comes late or twice; live says which is which.
type session struct {
	f      *Feed
	conn   *zmtp.Conn
	items  chan item          // from the reader, which closes it
	spare  chan *zmtp.Message // back to the reader
	room   chan struct{}      // tells the reader that bytes were taken
	done   chan struct{}      // tells the reader to end
	err    error              // why the reader ended, once items is closed
	broken atomic.Bool        // it has ended
	any    bool               // a live message came
	last   uint64             // number of the last live message
	synced bool               // the first replay is over
	blind  int                // probes in a row that found what should have come live
}

// item is a live message on its way from the reader.
type item struct {
	m        *zmtp.Message
	oversize bool
}

// session subscribes and follows the stream until the connection breaks, ctx
// ends or the engine is found restarted.
func (f *Feed) session(ctx context.Context) error {
	conn, err := f.dial(ctx, f.cfg.Endpoint, zmtp.Sub, zmtp.Options{MaxMessage: f.cfg.MaxMessage, Handshake: f.cfg.Dial})
	if err != nil {
		f.counters.refused.Add(1)
		return err
	}
	f.counters.connects.Add(1)
	s := &session{
		f: f, conn: conn,
		items: make(chan item, f.cfg.QueueMessages),
		spare: make(chan *zmtp.Message, spareMessages),
		room:  make(chan struct{}, 1),
		done:  make(chan struct{}),
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // the reader tells
	defer stop()
	var reader sync.WaitGroup
	reader.Go(s.read)
	defer func() {
		close(s.done)
		_ = conn.Close() // nothing is left to send
		reader.Wait()
		for it := range s.items {
			s.release(it)
		}
	}()
	f.samePublisher = !f.have
	f.ask.Progress() // perhaps it is another engine
	if err := conn.Subscribe(f.cfg.Topic); err != nil {
		return fmt.Errorf("subscribe at %s: %w", f.cfg.Endpoint, err)
	}
	return s.follow(ctx)
}

// read is the reader: it puts live messages into the queue.
func (s *session) read() {
	defer close(s.items)
	c := &s.f.counters
	for {
		var m *zmtp.Message
		select {
		case m = <-s.spare:
		default:
			m = new(zmtp.Message)
		}
		err := s.conn.ReadMessage(m)
		oversize := errors.Is(err, zmtp.ErrTooLarge)
		if err != nil && !oversize {
			s.err = err
			s.broken.Store(true)
			return
		}
		// A message larger than the whole queue gets in when it is empty. The feed takes
		// its bytes off when it is done with a message, so at most one is beyond.
		n := int64(m.Size())
		for full := false; ; {
			queued := c.queuedBytes.Load()
			if queued == 0 || queued+n <= int64(s.f.cfg.QueueBytes) {
				break
			}
			if !full {
				full = true
				c.queueFull.Add(1)
			}
			select {
			case <-s.room:
			case <-s.done:
				return
			}
		}
		c.queuedBytes.Add(n)
		c.queued.Add(1)
		it := item{m, oversize}
		select {
		case s.items <- it:
			continue
		default:
			c.queueFull.Add(1)
		}
		select {
		case s.items <- it:
		case <-s.done:
			s.release(it)
			return
		}
	}
}

// release takes a message out of the queue's account. One that grew large is left to the
// garbage collector: spare ones are kept for as long as the session lasts.
func (s *session) release(it item) {
	s.f.counters.queuedBytes.Add(-int64(it.m.Size()))
	s.f.counters.queued.Add(-1)
	select {
	case s.room <- struct{}{}:
	default:
	}
	if it.m.Cap() <= spareBytes {
		select {
		case s.spare <- it.m:
		default:
		}
	}
}

// follow catches up and then applies live messages as they come. A connection that brings
// nothing may be one that the network forgot, or an engine at rest: after a silence the
// engine is asked, at most twice as long after each time that it had nothing.
func (s *session) follow(ctx context.Context) error {
	f := s.f
	if _, err := s.catchUp(ctx, 0); err != nil {
		return err
	}
	s.synced = true
	f.h.State(State{Phase: Live})
	var silence <-chan time.Time
	wait, heard := f.cfg.ProbeMin, false
	var timer *time.Timer
	if f.cfg.Replay != "" && wait > 0 {
		timer = time.NewTimer(wait)
		defer timer.Stop()
		silence = timer.C
	}
	for {
		select {
		case it, ok := <-s.items:
			if !ok {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				f.counters.disconnects.Add(1)
				return fmt.Errorf("subscription at %s: %w", f.cfg.Endpoint, s.err)
			}
			heard, s.blind = true, 0
			err := s.live(ctx, it)
			s.release(it)
			if err != nil {
				return err
			}
		case <-silence:
			if heard {
				heard, wait = false, f.cfg.ProbeMin
			} else {
				if err := s.probe(ctx); err != nil {
					return err
				}
				wait = min(2*wait, f.cfg.ProbeMax)
			}
			timer.Reset(wait)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// probe asks whether the engine has published what did not come. Once, it may just have
// been on its way; maxBlind times in a row the subscription brings nothing, and a new
// one is made.
func (s *session) probe(ctx context.Context) error {
	f := s.f
	f.counters.probes.Add(1)
	before := f.next()
	if _, err := s.replayed(ctx, 0); err != nil {
		return err
	}
	if f.next() == before {
		return nil
	}
	if s.blind++; s.blind < maxBlind {
		return nil
	}
	f.counters.silent.Add(1)
	return fmt.Errorf("subscription at %s: %w", f.cfg.Endpoint, errSilent)
}

// live applies a live message. What its number says, against the last of this connection
// and the last applied:
//   - it fell on this connection: the same message again if the payload is that of the
//     last batch; else a replay decides: if the process that answers goes on from the
//     batches that are applied the number is an old one, and if not the engine restarted.
//   - it is not new and nothing has told yet whether the connection's process is that of
//     the last batch: it is not, or the message would be a copy of that batch.
//   - it is beyond the next: what is between is replayed, and lost if it cannot be.
//   - it is not new otherwise: a replay brought it before.
func (s *session) live(ctx context.Context, it item) error {
	f, c, m := s.f, &s.f.counters, it.m
	c.messages.Add(1)
	if m.Len() != 3 || len(m.Frame(1)) != 8 {
		c.malformed.Add(1)
		return nil
	}
	topic, seq, payload := m.Frame(0), binary.BigEndian.Uint64(m.Frame(1)), m.Frame(2)
	if n := len(f.cfg.Topic); len(topic) < n || string(topic[:n]) != f.cfg.Topic || f.cfg.ExactTopic && len(topic) > n {
		c.otherTopic.Add(1)
		return nil
	}
	c.bytes.Add(uint64(len(payload)))
	// One process's numbers only rise on one connection.
	fell := s.any && seq <= s.last
	if s.any && seq > s.last+1 {
		c.gaps.Add(1)
		c.missed.Add(seq - s.last - 1)
	}
	same := f.have && f.printed && seq == f.last && !it.oversize && xxh3.Hash(payload) == f.print
	switch {
	case fell && same:
		c.duplicate.Add(1)
		return nil
	case fell:
		sleep(ctx, time.Until(f.verify.Next()))
		verified, err := s.catchUp(ctx, 0)
		if err != nil {
			return err
		}
		if verified && seq < f.next() {
			now := time.Now()
			f.verify.Later(now, now, f.cfg.RetryMin, f.cfg.RetryMax, f.seed)
			c.duplicate.Add(1)
			return nil
		}
		if err := f.restart(FellBack); err != nil {
			return err
		}
		sleep(ctx, f.rest)
	case seq < f.next() && !f.samePublisher && !same:
		// Nothing told that this is still the process of the last batch.
		if err := f.restart(FellBack); err != nil {
			return err
		}
		sleep(ctx, f.rest)
	}
	s.any, s.last = true, seq
	if seq > f.next() {
		why := NoReplay
		if f.cfg.Replay != "" {
			why = ReplayFailed
			if _, err := s.catchUp(ctx, seq); err != nil {
				return err
			}
		}
		f.skipTo(seq, why)
	}
	if seq < f.next() {
		f.samePublisher = true
		c.overlap.Add(1)
		return nil
	}
	f.apply(seq, payload, it.oversize, false)
	return nil
}
