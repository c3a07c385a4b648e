package publish

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// sender is the goroutine that sends the queue and waits for the outcomes.
type sender struct {
	*Publisher
	flying []*message    // sent, oldest first, at most Window
	ready  []*message    // scratch
	beat   []byte        // scratch
	warned time.Time     // when the log last said that publishing waits
	next   time.Time     // heartbeat
	took   time.Time     // when the stream last took a message
	usual  time.Duration // between an attempt and its acknowledgement, lately
}

func newSender(p *Publisher) *sender { return &sender{Publisher: p} }

// run sends until the publisher's context ends.
func (s *sender) run() {
	defer close(s.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	s.next = time.Now() // the first at once: readers learn of the publisher
	for s.ctx.Err() == nil {
		if s.beats() {
			s.heartbeat(s.subject, func(r *progress) uint64 { return r.resolved })
		}
		wait := s.fillReady()
		ok := true
		for i, msg := range s.ready {
			s.flying = append(s.flying, msg)
			if ok = s.send(msg); !ok {
				s.putBack(s.ready[i+1:])
				break
			}
		}
		if !ok {
			s.repair()
			continue
		}
		if s.cfg.Heartbeat > 0 {
			wait = min(wait, time.Until(s.next))
		}
		if len(s.flying) > 0 {
			wait = min(wait, time.Until(s.flying[0].tried.Add(s.patience())))
		}
		timer.Reset(max(wait, 0))
		var acked <-chan *jetstream.PubAck
		var failed <-chan error
		if len(s.flying) > 0 {
			acked, failed = s.flying[0].ack.Ok(), s.flying[0].ack.Err()
		}
		select {
		case ack := <-acked:
			s.landed(ack)
		case err := <-failed:
			s.flying[0].ack, s.flying[0].err = nil, err
			s.repair()
		case <-s.wake:
		case <-timer.C:
			s.sendAgain()
		case <-s.ctx.Done():
		}
	}
	s.m.inFlight.Add(-float64(len(s.flying)))
	if s.isRefused() {
		s.m.refusing.Dec()
	}
}

// fillReady seals the open batch if it is due and moves what the window allows to
// s.ready. It returns how long the open batch may wait.
func (s *sender) fillReady() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.limit = s.out.maxMessage() // a reconnect may lead to another server
	const idle = time.Hour          // the wake channel ends it
	wait := idle
	if len(s.mu.open.events) > 0 {
		wait = time.Until(s.mu.open.since.Add(s.cfg.Linger))
		if wait <= 0 {
			s.sealLocked()
			wait = idle
		}
	}
	n := min(len(s.mu.queue), s.cfg.Window-len(s.flying))
	s.ready = append(s.ready[:0], s.mu.queue[:n]...)
	clear(s.mu.queue[:n])
	if s.mu.queue = s.mu.queue[n:]; len(s.mu.queue) == 0 {
		s.mu.queue = nil
	}
	return wait
}

// leastPatience is how long the oldest message waits for its acknowledgement, at least,
// before a copy of it is sent.
const leastPatience = 500 * time.Millisecond

// patience returns how long it waits: longer where acknowledgements usually take long.
func (s *sender) patience() time.Duration {
	return min(max(leastPatience, 4*s.usual), s.cfg.AckWait)
}

// sendAgain sends a copy of the oldest message in flight if its acknowledgement is late: a
// server that ended, or is no leader any more, never sends it, and the next one may be there
// for a while. Its id makes it one message. After AckWait it has failed.
func (s *sender) sendAgain() {
	if len(s.flying) == 0 || time.Since(s.flying[0].tried) < s.patience() {
		return
	}
	switch msg := s.flying[0]; {
	case time.Since(msg.sent) >= s.cfg.AckWait:
		msg.ack, msg.err = nil, jetstream.ErrAsyncPublishTimeout
		s.repair()
	default:
		s.m.retry("late")
		if !s.send(msg) {
			s.repair()
		}
	}
}

// putBack returns messages that were taken and not sent to the queue's head.
func (s *sender) putBack(msgs []*message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.queue = append(append([]*message(nil), msgs...), s.mu.queue...)
}

// send starts an attempt; false means that it failed at once.
func (s *sender) send(msg *message) bool {
	if msg.sent.IsZero() {
		msg.sent = time.Now()
		s.m.inFlight.Inc()
	}
	msg.tried = time.Now()
	msg.ack, msg.err = s.out.publish(s.subject, msg.id, msg.data)
	if msg.err != nil {
		msg.ack = nil
		return false
	}
	s.m.messages.Inc()
	s.m.bytes.Add(len(msg.data))
	return true
}

// landed takes the oldest message in flight off: it is acknowledged, or given
// up if ack is nil.
func (s *sender) landed(ack *jetstream.PubAck) {
	msg := s.flying[0]
	s.flying[0] = nil
	s.flying = s.flying[1:]
	s.m.inFlight.Dec()
	if ack != nil {
		s.took = time.Now()
		s.usual += (s.took.Sub(msg.tried) - s.usual) / 8
		s.refuse(false)
		s.m.acked.Inc()
		s.m.ackSeconds.UpdateDuration(msg.sent)
		if ack.Duplicate {
			s.m.duplicates.Inc()
		}
	}
	s.resolve(msg)
}

// repair sends every message in flight until it is acknowledged, oldest
// first, before anything new is sent. See the package comment on order.
func (s *sender) repair() {
	backoff := time.Duration(0) // what failed with another message goes again at once
	for len(s.flying) > 0 {
		msg := s.flying[0]
		if msg.ack != nil {
			select {
			case ack := <-msg.ack.Ok():
				s.landed(ack)
				backoff = 0
				continue
			case err := <-msg.ack.Err():
				msg.ack, msg.err = nil, err
			case <-time.After(time.Until(msg.tried.Add(s.patience()))):
				msg.ack, msg.err, backoff = nil, jetstream.ErrAsyncPublishTimeout, 0 // it has waited
			case <-s.ctx.Done():
				return
			}
		}
		if tooLarge(msg.err) {
			s.m.droppedLarge.Add(msg.events)
			s.cfg.Log.Error("events lost: a message is larger than the server takes", "bytes", len(msg.data), "error", msg.err)
			s.landed(nil)
			continue
		}
		s.m.retry(reason(msg.err))
		if now := time.Now(); now.Sub(msg.sent) > time.Second && now.Sub(s.warned) > 10*time.Second {
			s.warned = now
			s.cfg.Log.Warn("publishing waits: the stream does not take a message, trying again",
				"subject", s.subject, "since", msg.sent, "error", msg.err)
		}
		if why := reason(msg.err); s.cfg.StreamWait >= 0 && why != disconnected && min(time.Since(msg.sent), time.Since(s.took)) > s.cfg.StreamWait {
			s.refuse(true)
		}
		if s.isRefused() && s.beats() {
			s.heartbeat(stream.LiveSubject(s.cfg.Namespace, s.cfg.Space, s.cfg.Worker), func(r *progress) uint64 { return r.last })
		}
		if backoff > 0 && !s.pause(backoff/2+rand.N(backoff/2+1)) {
			return
		}
		backoff = min(max(2*backoff, s.cfg.RetryMin), s.cfg.RetryMax)
		if gone(msg.err) {
			// In a cluster without a leader this is in vain, and there may be one in a moment.
			ctx, cancel := context.WithTimeout(s.ctx, min(restoreWait, s.cfg.AckWait))
			if err := s.out.restore(ctx); err != nil {
				msg.err = err // more telling, for the log
			}
			s.subject = s.out.subject(s.cfg.Namespace, s.cfg.Space, s.cfg.Worker) // the space may be divided otherwise now
			cancel()
		}
		if stream.IsFull(msg.err) {
			ctx, cancel := context.WithTimeout(s.ctx, s.cfg.AckWait)
			roomy, err := s.out.grow(ctx)
			cancel()
			if roomy {
				backoff = 0
			} else if err != nil {
				s.cfg.Log.Warn("the stream is full and not enlarged", "subject", s.subject, "error", err)
			}
		}
		s.send(msg)
	}
}

// restoreWait bounds one try to make the stream again.
const restoreWait = time.Second

// pause waits; false means that the publisher ends.
func (s *sender) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-s.ctx.Done():
		return false
	}
}

// beats reports whether it is time for a heartbeat.
func (s *sender) beats() bool {
	now := time.Now()
	if s.cfg.Heartbeat < 0 || now.Before(s.next) {
		return false
	}
	s.next = now.Add(s.cfg.Heartbeat)
	return true
}

func (s *sender) isRefused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.refused
}

// heartbeat tells readers how far each rank is: up to which event everything is in the
// stream before this message, or lost; or past a stream that refuses events, up to which
// one they can be asked for. Nobody waits for it: the next follows.
func (s *sender) heartbeat(subject string, id func(*progress) uint64) {
	b := s.header()
	s.mu.Lock()
	b.Last = s.positionsLocked(id)
	s.mu.Unlock()
	s.beat = event.AppendHeartbeat(s.beat[:0], &b)
	if s.out.tell(subject, s.beat) == nil {
		s.m.heartbeats.Inc()
	}
}
