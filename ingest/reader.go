package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

const (
	pullMessages = 2048    // messages asked for at a time
	pullBytes    = 8 << 20 // bytes asked for at a time
	ackEvery     = 200 * time.Millisecond
	requestWait  = 5 * time.Second
)

// reader reads one stream: messages in stream order to the lanes.
type reader struct {
	*group
	js   jetstream.JetStream
	name string      // of the stream
	left []departure // workers of the start position that left since
	// trimmed holds a token when messages were seen to be gone before they were read.
	trimmed chan struct{}

	// Of the reading goroutine only.
	next   uint64    // first sequence not read
	lastAt time.Time // when the stream stored message next-1; zero: not known

	since time.Time // when it was opened

	mu struct {
		sync.Mutex
		created  time.Time
		begin    uint64 // position when it was opened
		read     uint64 // next-1, for the discovery
		end      uint64 // last sequence of the stream, as far as known
		target   uint64 // end when the reader was opened
		checked  bool   // the position is known to be of this stream
		caughtUp bool
		err      error // why nothing is read at the moment
	}
}

func newReader(g *group, js jetstream.JetStream, info stream.Info) *reader {
	r := &reader{group: g, js: js, name: info.Name, next: 1, trimmed: make(chan struct{}, 1), since: time.Now()}
	r.mu.created, r.mu.end, r.mu.target = info.Created, info.LastSeq, info.LastSeq
	if start, ok := g.cfg.Start[info.Name]; ok {
		r.begin(start)
	}
	return r
}

// begin sets the reader where a snapshot ends.
func (r *reader) begin(start Start) {
	for _, pos := range start.Ranks {
		r.lane(pos.Worker).do(func(l *lane) {
			k := l.rank(pos.Worker, pos.DPRank)
			if k == nil || k.adopted {
				return
			}
			if k.void { // what the snapshot has of it goes before anything is read
				r.left = append(r.left, departure{pos.Worker, k.leftAt})
				k.leftAt, k.void = time.Time{}, false
			}
			k.resume(pos)
		})
	}
	if start.Seq > 1 {
		r.next, r.lastAt = start.Seq, start.Stored
		r.window.restart(start.Seq - 1)
		r.mu.read, r.mu.begin = start.Seq-1, start.Seq-1
		if !start.Created.IsZero() {
			r.mu.created = start.Created // compared when reading begins
		}
	}
}

// run reads until ctx ends, beginning again after every failure, and returns
// once the lanes have stopped and the index is done with what they gave it.
func (r *reader) run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { r.acknowledge(ctx) })
	for _, d := range r.left {
		select {
		case r.lane(d.worker).departures <- d:
		case <-ctx.Done():
		}
	}
	var logged time.Time
	backoff := 50 * time.Millisecond
	for {
		before := r.next
		err := r.session(ctx)
		if ctx.Err() != nil {
			break
		}
		r.m.reset(resetReason(err))
		if errors.Is(err, errReloaded) {
			continue
		}
		r.setError(err)
		if now := time.Now(); now.Sub(logged) > time.Second {
			logged = now
			r.cfg.Log.Warn("reading begins again", "stream", r.name, "after", r.next-1, "error", err)
		}
		if r.next > before {
			backoff = 50 * time.Millisecond
		}
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
		}
		backoff = min(2*backoff, 2*time.Second)
	}
	running.Wait()
	r.running.Wait()
	r.applying.Wait()
	r.ack()
}

// The reasons for which a session ends, beside what the client reports.
var (
	errReconnected = errors.New("connection was lost and is back")
	errHole        = errors.New("a message was lost between the server and here")
)

// resetReason is the label of a session's end.
func resetReason(err error) string {
	switch {
	case errors.Is(err, errReconnected):
		return "reconnected"
	case errors.Is(err, errHole):
		return "hole"
	case errors.Is(err, errTrimmed):
		return "trimmed"
	case errors.Is(err, errReloaded):
		return "reloaded"
	case errors.Is(err, jetstream.ErrNoHeartbeat):
		return "no_heartbeat"
	case errors.Is(err, jetstream.ErrConsumerDeleted), errors.Is(err, jetstream.ErrConsumerNotFound):
		return "consumer_gone"
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return "stream_gone"
	}
	return "error"
}

// session makes the consumer begin at r.next and reads until something fails.
// Within it, the numbers that the server gives to deliveries leave no hole, so
// nothing is missed; after it, everything from r.next on is delivered again.
func (r *reader) session(run context.Context) error {
	ctx, cancel := context.WithCancelCause(run)
	defer cancel(nil)
	// A delivery that was on its way when the connection broke would come
	// again only when its acknowledgement is overdue: do not wait for that.
	status := r.cfg.Conn.StatusChanged(nats.CONNECTED)
	defer r.cfg.Conn.RemoveStatusListener(status)

	go func() {
		select {
		case <-status:
			cancel(errReconnected)
		case <-r.trimmed:
			cancel(errTrimmed)
		case <-ctx.Done():
		}
	}()

	consumer, err := r.open(ctx, run)
	if err != nil {
		if ctx.Err() != nil { // a request that the server never saw
			err = context.Cause(ctx)
		}
		return err
	}
	it, err := consumer.Messages(
		jetstream.PullMaxMessagesWithBytesLimit(pullMessages, pullBytes),
		jetstream.PullExpiry(10*time.Second),
		jetstream.PullHeartbeat(time.Second),
		jetstream.WithMessagesErrOnMissingHeartbeat(true))
	if err != nil {
		return fmt.Errorf("reading: %w", err)
	}
	defer it.Stop()
	stop := context.AfterFunc(ctx, it.Stop)
	defer stop()
	r.setError(nil)
	for delivered := uint64(1); ; delivered++ {
		msg, err := it.Next()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("reading: %w", err)
		}
		md, err := msg.Metadata()
		if err != nil {
			return fmt.Errorf("reading: %w", err)
		}
		if md.Sequence.Consumer != delivered {
			return fmt.Errorf("%w: delivery %d follows %d", errHole, md.Sequence.Consumer, delivered-1)
		}
		if err := r.dispatch(run, msg, md); err != nil {
			return err
		}
	}
}

// dispatch hands one message to its lane. ctx is the reader's: a message that
// is read goes on although the session ends.
func (r *reader) dispatch(ctx context.Context, msg jetstream.Msg, md *jetstream.MsgMetadata) error {
	seq := md.Sequence.Stream
	if seq < r.next {
		r.m.redelivered.Inc() // its acknowledgement is overdue: it is still in flight
		return nil
	}
	if seq > r.next {
		if err := r.jumped(ctx); err != nil {
			return err
		}
	}
	data := msg.Data()
	number, err := r.window.add(ctx, entry{seq: seq, at: md.Timestamp, reply: msg.Reply(), bytes: len(data)})
	if err != nil {
		return err
	}
	r.next, r.lastAt = seq+1, md.Timestamp
	r.mu.Lock()
	r.mu.read = seq
	r.mu.end = max(r.mu.end, seq+md.NumPending)
	r.mu.Unlock()
	worker, err := stream.Worker(msg.Subject())
	if err != nil {
		r.lanes[0].malformed(0, "subject", err)
		r.window.complete(number)
		return nil
	}
	l := r.lane(worker)
	w := l.works.Get().(*work)
	w.begin(number, worker, data)
	w.stored = md.Timestamp
	select {
	case l.queue <- w:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// open checks that the stream is the one that was read so far and makes the
// consumer anew: its beginning cannot be moved. ctx is the session's, run the
// reader's.
func (r *reader) open(ctx, run context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestWait)
	defer cancel()
	select {
	case <-r.trimmed: // it is seen to here
	default:
	}
	s, err := r.js.Stream(ctx, r.name)
	if err != nil {
		return nil, fmt.Errorf("stream: %w", err)
	}
	info, err := stream.Get(ctx, r.js, r.name)
	if err != nil {
		return nil, err
	}
	if why, err := r.void(ctx, s, info); err != nil {
		return nil, err
	} else if why != "" {
		r.m.voidedPosition.Inc()
		r.cfg.Log.Warn("the position in the stream is void, reading it from its start", "stream", r.name, "after", r.next-1, "reason", why)
		r.restart(ctx, info)
	}
	if r.next < info.FirstSeq && r.reload(run, info) { // it takes its time, whatever the connection does
		return nil, errReloaded
	}
	if run.Err() != nil {
		return nil, run.Err()
	}
	if r.next < info.FirstSeq {
		r.mu.Lock()
		r.mu.begin += info.FirstSeq - r.next // what is gone is not read
		r.mu.read = info.FirstSeq - 1
		r.mu.Unlock()
		r.next, r.lastAt = info.FirstSeq, time.Time{} // what publishers numbered in between shows as gaps
		r.window.skipTo(info.FirstSeq - 1)
	}
	r.noteEnd(info.FirstSeq, info.LastSeq)
	r.mu.Lock()
	r.mu.checked = true
	r.mu.Unlock()
	name := "replica_" + r.cfg.Replica
	if err := s.DeleteConsumer(ctx, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil, fmt.Errorf("consumer %s: %w", name, err)
	}
	r.window.forgetReplies()
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable:           name,
		Description:       "kvatlas replica " + r.cfg.Replica + ": shows its lag",
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       r.next,
		AckPolicy:         jetstream.AckAllPolicy,
		AckWait:           2*r.cfg.HoldFor + time.Minute,
		MaxAckPending:     -1, // the window bounds what is in flight
		InactiveThreshold: r.cfg.ForgetConsumer,
		MemoryStorage:     true, // it is made anew at every start: syncing it to the disk buys nothing
	})
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", name, err)
	}
	return c, nil
}

// void says why the position means nothing in this stream; empty if it does.
func (r *reader) void(ctx context.Context, s jetstream.Stream, info stream.Info) (string, error) {
	r.mu.Lock()
	created := r.mu.created
	r.mu.Unlock()
	switch {
	case r.next == 1:
		return "", nil // nothing was read
	case !info.Created.Equal(created):
		return "the stream was made again", nil
	case info.LastSeq < r.next-1:
		return "the stream ends before it", nil
	case r.lastAt.IsZero() || info.FirstSeq > r.next-1:
		return "", nil // cannot be told, or what was read is gone by now
	}
	// A server that lost its last messages gives their sequences to new ones.
	msg, err := s.GetMsg(ctx, r.next-1)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("message %d: %w", r.next-1, err)
	case !msg.Time.Equal(r.lastAt):
		return "it is another message's now", nil
	}
	return "", nil
}

// restart sets the reader to the stream's start, and asks publishers what their
// ranks hold: what was read may not be in the stream any more, or come again.
func (r *reader) restart(ctx context.Context, info stream.Info) {
	for _, l := range r.lanes {
		select {
		case l.inbox <- l.void:
		case <-ctx.Done():
		}
	}
	r.next, r.lastAt = 1, time.Time{}
	r.window.restart(0)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.created, r.mu.read, r.mu.begin, r.mu.end = info.Created, 0, 0, info.LastSeq
	r.mu.target = min(r.mu.target, info.LastSeq)
}

// noteEnd learns where the stream begins and ends now. What was not read yet and
// no longer exists ends the session, so that the next one deals with it.
func (r *reader) noteEnd(first, last uint64) {
	r.mu.Lock()
	r.mu.end = max(r.mu.end, last)
	trimmed := first > r.mu.read+1
	r.mu.Unlock()
	if trimmed {
		select {
		case r.trimmed <- struct{}{}:
		default:
		}
	}
}

func (r *reader) setError(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.err = err
}

// acknowledge tells the server the position now and then.
func (r *reader) acknowledge(ctx context.Context) {
	ticker := time.NewTicker(ackEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			r.ack()
		case <-ctx.Done():
			return
		}
	}
}

func (r *reader) ack() {
	if reply := r.window.takeReply(); reply != "" {
		// It only moves the lag that others see: the next one makes up for a
		// lost one.
		_ = r.cfg.Conn.Publish(reply, []byte("+ACK"))
	}
}

// status describes the reader.
func (r *reader) status(now time.Time) StreamStatus {
	p := r.window.progress()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := StreamStatus{
		Stream: r.name, Space: r.space, Created: r.mu.created,
		Begin: r.mu.begin, Since: r.since, Position: p.pos, Last: max(r.mu.end, p.pos),
		InFlight: p.inFlight, InFlightBytes: p.bytes, Err: r.mu.err,
	}
	s.Lag = s.Last - s.Position
	if s.Lag > 0 && !p.oldest.IsZero() {
		s.LagTime = max(0, now.Sub(p.oldest))
	}
	if r.mu.checked && p.pos >= r.mu.target && s.Lag <= r.cfg.MaxLag {
		r.mu.caughtUp = true
	}
	s.CaughtUp = r.mu.caughtUp
	return s
}
