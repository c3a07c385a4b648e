package publish

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// sender is the goroutine that sends the queue and waits for the outcomes.
type sender struct {
	*Publisher
	congestion
	flying  []*message // sent, oldest first, at most a window; numbered without a hole
	ready   []*message // scratch
	beat    []byte     // scratch
	warned  time.Time  // when the log last said that publishing waits
	next    time.Time  // heartbeat
	took    time.Time  // when the stream last took a message
	restore struct {
		wait time.Duration // between the tries to make the stream again
		next time.Time
	}
}

func newSender(p *Publisher) *sender {
	return &sender{Publisher: p, congestion: congestion{window: p.cfg.Window, full: p.cfg.Window}}
}

// idle is how long nothing is to be done, where that is not known: something else ends it.
const idle = time.Hour

// run sends until the publisher's context ends.
func (s *sender) run() {
	defer close(s.done)
	timer := time.NewTimer(idle)
	defer timer.Stop()
	s.next = time.Now() // the first at once: readers learn of the publisher
	for s.ctx.Err() == nil {
		s.hear()
		wait := min(s.sendNew(), s.heartbeats())
		wait = min(wait, s.sendAgain()) // last: of what was just sent too
		timer.Reset(max(wait, 0))
		select {
		case <-s.out.news():
		case <-s.wake:
		case <-timer.C:
		case <-s.ctx.Done():
		}
	}
	s.m.inFlight.Add(-float64(len(s.flying)))
	if s.isRefused() {
		s.m.refusing.Dec()
	}
}

// hear takes what became of the attempts. Messages leave in order: one that is stored waits
// for those before it.
func (s *sender) hear() {
	for _, end := range s.out.take() {
		if len(s.flying) == 0 || end.seq < s.flying[0].seq {
			continue // of a copy
		}
		msg := s.flying[end.seq-s.flying[0].seq]
		switch {
		case msg.stored:
		case end.err != nil:
			s.failed(msg, end.err)
		default:
			msg.stored, msg.ack, msg.took = true, end.ack, end.took
			for len(s.flying) > 0 && s.flying[0].stored {
				s.landed()
			}
			if end.try == 1 && len(s.flying) > 0 && s.flying[0].err == nil {
				// The next may be on its way likewise. After a copy's it is not: what was sent with
				// what is lost is lost.
				next := s.flying[0]
				next.next = later(next.next, time.Now().Add(s.patience(0, s.cfg.AckWait)))
			}
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// sendNew sends what the window allows, and returns how long the open batch may wait.
func (s *sender) sendNew() time.Duration {
	wait := s.fillReady()
	for i, msg := range s.ready {
		s.flying = append(s.flying, msg)
		if !s.send(msg) {
			s.putBack(s.ready[i+1:])
			return 0
		}
	}
	return wait
}

// fillReady seals the open batch if it is due and moves what the window allows to
// s.ready. It returns how long the open batch may wait. One that could not be sent stays
// open and grows: the fewer messages a server takes, the larger they are.
func (s *sender) fillReady() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.limit = s.out.maxMessage() // a reconnect may lead to another server
	room := max(0, s.window-len(s.flying))
	wait := idle
	if len(s.mu.open.events) > 0 && len(s.mu.queue) < room {
		wait = time.Until(s.mu.open.since.Add(s.cfg.Linger))
		if wait <= 0 {
			s.sealLocked()
			wait = idle
		}
	}
	n := min(len(s.mu.queue), room)
	s.ready = append(s.ready[:0], s.mu.queue[:n]...)
	clear(s.mu.queue[:n])
	if s.mu.queue = s.mu.queue[n:]; len(s.mu.queue) == 0 {
		s.mu.queue = nil
	}
	return wait
}

// putBack returns messages that were taken and not sent to the queue's head.
func (s *sender) putBack(msgs []*message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.queue = append(append([]*message(nil), msgs...), s.mu.queue...)
}

// send starts an attempt; false means that it failed at once.
func (s *sender) send(msg *message) bool {
	now := time.Now()
	if msg.tries == 0 {
		msg.sent = now
		s.m.inFlight.Inc()
	}
	msg.tries++
	msg.err = nil
	msg.next = now.Add(s.patience(msg.tries-1-msg.fails, s.cfg.AckWait))
	if err := s.out.publish(s.subject, msg); err != nil {
		s.failed(msg, err)
		return false
	}
	s.m.messages.Inc()
	s.m.bytes.Add(len(msg.data))
	return true
}

// failed notes that an attempt failed, and when the next one is: once it is the oldest.
func (s *sender) failed(msg *message, err error) {
	var wait time.Duration // the first time none: its successors may be stored, and readers hold them back
	for range msg.fails {
		wait = min(max(2*wait, s.cfg.RetryMin), s.cfg.RetryMax)
	}
	if gone(err) { // nobody had work with it, and there may be another leader in a moment
		wait = min(wait, max(s.cfg.RetryMin, time.Since(msg.sent)/8))
	}
	msg.fails++
	msg.err, msg.next = err, time.Now().Add(wait/2+rand.N(wait/2+1))
	s.congestion.failed()
}

// landed takes the oldest message in flight off: it is stored, or given up.
func (s *sender) landed() {
	msg := s.flying[0]
	s.flying[0] = nil
	s.flying = s.flying[1:]
	s.m.inFlight.Dec()
	if msg.ack != nil {
		s.took = time.Now()
		s.restore.wait, s.restore.next = 0, time.Time{}
		s.congestion.landed(msg.took, len(s.flying))
		s.refuse(false)
		s.m.acked.Inc()
		s.m.ackSeconds.UpdateDuration(msg.sent)
		if msg.ack.Duplicate {
			s.m.duplicates.Inc()
		}
	}
	s.resolve(msg)
}

// sendAgain sends the oldest message in flight again when it has failed or is late, and
// returns how long it may wait for that. The others follow once they are the oldest, and
// its id makes it one message however many copies come.
func (s *sender) sendAgain() time.Duration {
	for len(s.flying) > 0 && s.ctx.Err() == nil {
		msg := s.flying[0]
		if left := time.Until(msg.next); left > 0 {
			return left
		}
		if tooLarge(msg.err) {
			s.m.droppedLarge.Add(msg.events)
			s.cfg.Log.Error("events lost: a message is larger than the server takes", "bytes", len(msg.data), "error", msg.err)
			s.makeStream() // its limit is another than was known: the next messages would be lost likewise
			s.landed()
			continue
		}
		s.congestion.failed()
		s.wait(msg)
		if gone(msg.err) || isCode(msg.err, batchesOff) {
			s.makeStream()
		}
		if stream.IsFull(msg.err) {
			ctx, cancel := context.WithTimeout(s.ctx, requestWait)
			if _, err := s.out.grow(ctx); err != nil {
				s.cfg.Log.Warn("the stream is full and not enlarged", "subject", s.subject, "error", err)
			}
			cancel()
		}
		s.send(msg)
	}
	return idle
}

var errLate = errors.New("NATS has not acknowledged it yet")

// wait says that the message has to, and for how long it had to.
func (s *sender) wait(msg *message) {
	why, err := "late", errLate
	if msg.err != nil {
		why, err = reason(msg.err), msg.err
	}
	s.m.retry(why)
	if now := time.Now(); now.Sub(msg.sent) > time.Second && now.Sub(s.warned) > 10*time.Second {
		s.warned = now
		s.cfg.Log.Warn("publishing waits: the stream does not take a message, trying again",
			"subject", s.subject, "since", msg.sent, "reason", why, "error", err)
	}
	if s.cfg.StreamWait >= 0 && why != disconnected && min(time.Since(msg.sent), time.Since(s.took)) > s.cfg.StreamWait {
		s.refuse(true)
	}
}

// The bounds of a request to the server, of one try to make the stream again, and of the
// waits between those.
const (
	requestWait     = 5 * time.Second
	restoreWait     = time.Second
	mostRestoreWait = 30 * time.Second
)

// makeStream makes the stream again, and learns what it takes now, now and then: in a cluster without a leader this is in
// vain, and there may be one in a moment.
func (s *sender) makeStream() {
	if time.Now().Before(s.restore.next) {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, restoreWait)
	defer cancel()
	if err := s.out.restore(ctx); err != nil {
		s.cfg.Log.Debug("the stream is not made again", "subject", s.subject, "error", err)
	}
	s.subject = s.out.subject(s.cfg.Namespace, s.cfg.Space, s.cfg.Worker) // the space may be divided otherwise now
	s.mu.Lock()
	s.mu.limit = s.out.maxMessage()
	s.mu.Unlock()
	s.restore.wait = min(max(2*s.restore.wait, restoreWait), mostRestoreWait)
	s.restore.next = time.Now().Add(s.restore.wait/2 + rand.N(s.restore.wait/2))
}

// heartbeats sends a heartbeat when it is time, and returns how long the next one may wait.
// Where messages wait for the stream it would be one of those; replicas are told past it.
func (s *sender) heartbeats() time.Duration {
	if s.cfg.Heartbeat < 0 {
		return idle
	}
	now := time.Now()
	if left := s.next.Sub(now); left > 0 {
		return left
	}
	s.next = now.Add(s.cfg.Heartbeat)
	switch {
	case s.isRefused():
		s.heartbeat(stream.LiveSubject(s.cfg.Namespace, s.cfg.Space, s.cfg.Worker), func(r *progress) uint64 { return r.last })
	case len(s.flying) == 0 || s.flying[0].tries == 1:
		s.heartbeat(s.subject, func(r *progress) uint64 { return r.resolved })
	}
	return s.cfg.Heartbeat
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
