package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

const (
	pullMessages = 2048    // messages asked for at a time
	pullBytes    = 8 << 20 // bytes asked for at a time, or as many as one message may have
	pullExpiry   = 10 * time.Second
	envelope     = 1 << 20 // room for a message's subjects and headers, which count
	ackEvery     = 200 * time.Millisecond
	requestWait  = 5 * time.Second
	mostPatience = 12 * requestWait
	sayEvery     = 10 * time.Second // for each reason: without a quorum all streams begin again each second, for hours

	leastHeartbeat = 500 * time.Millisecond // that a server accepts
)

// reader reads one stream: messages in stream order to the partitions.
//
// A position is a sequence and the time at which the stream stored that message. The
// sequence alone would not do: a server that lost its last messages, or was restored from
// a backup, gives their numbers to others. next runs ahead of what is applied; where
// reading would begin after a crash is what the window says.
type reader struct {
	*group
	*source
	js         jetstream.JetStream
	name       string     // of the stream
	number     int        // among those of its space
	sessionEnd chan error // holds why the session is to end, if it is

	// Of the reading goroutine only.
	next         uint64    // first sequence not read
	lastAt       time.Time // when the stream stored message next-1; zero: not known
	messages     uint64    // read
	restartPause restartPause
	patience     time.Duration // with a server that answers late
	consumer     string        // name of the own one
	made         time.Time     // when it was, by the last session; zero: it was not, or nobody answered

	since time.Time // when it was opened

	// Of discover only.
	growAgain time.Time
	hidden    bool // its gauges are not exposed
	unused    unused

	mu struct {
		sync.Mutex
		mark
		begin    uint64 // position when it was opened
		end      uint64 // last sequence of the stream, as far as known
		target   uint64 // end when the reader was opened
		caughtUp bool
		voided   time.Time // when the position was void last; zero: never
		err      error     // why nothing is read at the moment
		loop     loop
		idle     idle
		absent   time.Time // since when the stream is not there; zero: it is
		doubted  time.Time // LastTime of a stream that was looked into for it
		clock    clock
	}
}

func newReader(g *group, of *source, js jetstream.JetStream, info stream.Info) *reader {
	r := &reader{group: g, source: of, js: js, name: info.Name, number: info.Partition, next: 1, sessionEnd: make(chan error, 1), since: time.Now(), patience: g.cfg.patience,
		consumer: "replica_" + g.cfg.Replica}
	r.mu.created, r.mu.end, r.mu.target = info.Created, info.LastSeq, info.LastSeq
	r.mu.clock = clock{info.At, time.Now()}
	r.reads(info.Created)
	r.endsAt(info.Created, info.LastSeq)
	if start, ok := g.cfg.Start[info.Name]; ok {
		r.begin(start)
	}
	return r
}

// begin sets the reader where a snapshot ends.
func (r *reader) begin(start Start) {
	for _, pos := range start.Ranks {
		r.partition(pos.Worker).do(func(l *partition) { l.resume(context.Background(), pos, r.source) })
	}
	if start.Seq > 1 {
		r.next, r.lastAt = start.Seq, start.Stored
		r.window.restart(start.Seq-1, start.Stored)
		r.mu.read, r.mu.readAt, r.mu.begin = start.Seq-1, start.Stored, start.Seq-1
		if !start.Created.IsZero() {
			r.mu.created = start.Created // compared when reading begins
			r.reads(start.Created)
		}
	}
}

// run reads until ctx ends, beginning again after every failure, and returns
// once the partitions have stopped and the index is done with what they gave it.
func (r *reader) run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { r.acknowledge(ctx) })
	limited := obs.NewLimited(r.cfg.Log, sayEvery, nil)
	backoff := 50 * time.Millisecond
	for {
		before := r.messages
		err := r.session(ctx)
		if ctx.Err() != nil {
			break
		}
		reason := resetReason(err)
		r.m.reset(reason)
		r.failed(err)
		if !r.forgotten(time.Now()) {
			level := slog.LevelWarn
			if errors.Is(err, errReloaded) { // as a replica starts that another had a snapshot for
				level = slog.LevelInfo
			}
			limited.Log(level, reason, "reading begins again", slog.String("stream", r.name), slog.Uint64("after", r.next-1), slog.Any("error", err))
		}
		// A session that brought messages was not in vain, however it ended: only those
		// that fail again and again at the same place wait longer.
		if r.messages > before {
			backoff = 50 * time.Millisecond
		}
		r.patience = nextPatience(r.patience, r.cfg.patience, err, r.messages > before)
		select {
		case <-time.After(backoff/2 + rand.N(backoff/2)):
		case <-ctx.Done():
		}
		r.awaitConnection(ctx)
		backoff = min(2*backoff, 2*time.Second)
	}
	// In this order: who gives to the partitions, they, and the index, whose last word the
	// last acknowledgement is about.
	running.Wait()
	r.running.Wait()
	r.applying.Wait()
	r.ack()
}

// awaitConnection waits for one: what is asked without fails, again and again for all streams.
func (r *reader) awaitConnection(ctx context.Context) {
	connected := r.cfg.Conn.StatusChanged(nats.CONNECTED)
	defer r.cfg.Conn.RemoveStatusListener(connected)
	if !r.cfg.Conn.IsReconnecting() {
		return
	}
	select {
	case <-connected:
	case <-ctx.Done():
	}
}

// nextPatience returns how long the server is waited for in the next session. To begin all of it again is more work
// for one that is late; one that says at once that it cannot is not, and requests that it lost would be
// waited for when it can again.
func nextPatience(is, least time.Duration, err error, brought bool) time.Duration {
	switch {
	case brought || stream.Unavailable(err):
		return least
	case late(err):
		return min(2*is, mostPatience)
	}
	return is
}

// late reports whether a session ended because an answer did not come in time.
func late(err error) bool {
	return errors.Is(err, jetstream.ErrNoHeartbeat) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout)
}

// The reasons for which a session ends, beside what the client reports.
var (
	errReconnected = errors.New("connection was lost and is back")
	errHole        = errors.New("a message was lost between the server and here")
	errNamesake    = errors.New("another process has this replica's name, and took the consumer: give each of them one of its own (--replica); this one reads by another meanwhile")
)

// resetReason is the label of a session's end.
func resetReason(err error) string {
	switch {
	case errors.Is(err, errReconnected):
		return "reconnected"
	case errors.Is(err, errHole):
		return "hole"
	case errors.Is(err, errNamesake):
		return "namesake"
	case errors.Is(err, errTrimmed):
		return "trimmed"
	case errors.Is(err, errReloaded):
		return "reloaded"
	case errors.Is(err, errVoid):
		return "void"
	case errors.Is(err, errMoved):
		return "moved"
	case errors.Is(err, errIdle):
		return "idle"
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
		case err := <-r.sessionEnd:
			cancel(err)
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
	heartbeat := max(r.patience/5, leastHeartbeat)
	it, err := consumer.Messages(
		jetstream.PullMaxMessagesWithBytesLimit(pullMessages, max(pullBytes, int(r.cfg.Conn.MaxPayload())+envelope)),
		jetstream.PullExpiry(max(pullExpiry, 2*heartbeat)),
		jetstream.PullHeartbeat(heartbeat),
		jetstream.WithMessagesErrOnMissingHeartbeat(true))
	if err != nil {
		return fmt.Errorf("reading: %w", err)
	}
	defer it.Stop()
	stop := context.AfterFunc(ctx, it.Stop)
	defer stop()
	r.opened()
	steady := time.AfterFunc(steadyAfter, r.progressed) // an idle stream is no loop
	defer steady.Stop()
	delivered, owed := uint64(0), uint64(0) // messages here, and that the server has sent as far as it said
	wait := jetstream.NextMaxWait(r.patience)
	for {
		msg, err := it.Next(wait)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		switch {
		case errors.Is(err, nats.ErrTimeout) && delivered < owed:
			return fmt.Errorf("%w: delivery %d of %d does not come", errHole, delivered+1, owed)
		case errors.Is(err, jetstream.ErrNoHeartbeat), errors.Is(err, nats.ErrTimeout):
			if owed, err = r.owed(ctx, consumer, err); err != nil {
				return err
			}
			continue
		case err != nil:
			return fmt.Errorf("reading: %w", err)
		}
		md, err := msg.Metadata()
		if err != nil {
			return fmt.Errorf("reading: %w", err)
		}
		// The client drops what it has no room for, and says so beside the messages: the
		// server's own count of deliveries is what cannot be missed.
		if md.Sequence.Consumer != delivered+1 {
			return fmt.Errorf("%w: delivery %d follows %d", errHole, md.Sequence.Consumer, delivered)
		}
		delivered++
		if err := r.dispatch(run, msg, md); err != nil {
			return err
		}
	}
}

// owed asks how many messages the server has sent, where a heartbeat is missing and where nothing came for a
// while, heartbeats or not: of deliveries that were lost the numbers tell only when another one follows, and the
// last ones of a burst may be lost, for a client that asks a slow server again has no room for all that it gets
// then. A server that is slow has its consumer all the same: the session goes on, with all that is on its way.
func (r *reader) owed(ctx context.Context, consumer jetstream.Consumer, silence error) (uint64, error) {
	if errors.Is(silence, jetstream.ErrNoHeartbeat) {
		r.m.lateHeartbeats.Inc()
	}
	asking, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	info, err := consumer.Info(asking)
	if ctx.Err() != nil { // the session ends, and not for the silence
		return 0, context.Cause(ctx)
	}
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return 0, fmt.Errorf("reading: %w", err)
	}
	if err != nil {
		return 0, fmt.Errorf("reading: %w, and of its consumer the server does not answer: %w", silence, err)
	}
	return info.Delivered.Consumer, nil
}

// dispatch hands one message to its partition. ctx is the reader's: a message that
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
	// Before the partition has it: the window must know all that precedes a message when
	// that is done, or it would acknowledge more than is applied.
	number, err := r.window.add(ctx, entry{seq: seq, at: md.Timestamp, reply: msg.Reply(), bytes: len(data)})
	if err != nil {
		return err
	}
	r.next, r.lastAt = seq+1, md.Timestamp
	r.messages++
	r.contact.heard(time.Now(), r.cfg)
	r.mu.Lock()
	r.mu.read, r.mu.readAt = seq, md.Timestamp
	r.mu.end = max(r.mu.end, seq+md.NumPending)
	r.end.Store(r.mu.end)
	r.mu.loop = loop{}
	r.mu.Unlock()
	worker, err := stream.Worker(msg.Subject())
	if err == nil && r.group.source(worker) != r.source {
		err = fmt.Errorf("worker %d's events do not belong into %s", worker, r.name)
	}
	if err != nil {
		// Nobody's, so any partition may count it; it is done, so that the window goes on.
		r.partitions[0].skipped(0, nil, "subject", err)
		r.window.complete(number)
		return nil
	}
	l := r.partition(worker)
	w := l.works.Get().(*work)
	w.begin(worker, data)
	w.source, w.number = r.source, number
	w.stored, w.stream, w.seq = md.Timestamp, r.stream().created, seq
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
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	select {
	case <-r.sessionEnd: //nolint:errcheck // it is seen to here
	default:
	}
	s, info, err := stream.Open(ctx, r.js, r.name)
	if err != nil {
		return nil, err
	}
	if _, err := r.cfg.Share.Reads(&info); err != nil { // made again: nobody is asked for what is not read here
		return nil, err
	}
	if of, err := r.part(&info); err != nil || of != r.source { // as above, until discover has seen it
		return nil, errors.Join(err, errMoved)
	}
	if why, err := stream.Void(ctx, s, &info, r.position()); err != nil {
		return nil, err
	} else if why != "" {
		if err := r.restartFromStart(run, &info, why); err != nil {
			return nil, err
		}
	}
	if (r.next < info.FirstSeq || r.beside()) && r.recoverFromSnapshot(run, s, &info) { // it takes its time, whatever the connection does
		return nil, errReloaded
	}
	if run.Err() != nil {
		return nil, run.Err()
	}
	r.follow(&info)
	if !r.made.IsZero() {
		if c, err := s.Consumer(ctx, r.consumer); err == nil && !c.CachedInfo().Created.Equal(r.made) {
			// Both would take it from each other for ever, and in a cluster wait seconds for it each time.
			r.window.forgetReplies() // they are to the other's, or to nobody
			r.consumer, r.made = fmt.Sprintf("replica_%s_%08x", r.cfg.Replica, rand.Uint32()), time.Time{}
			return nil, errNamesake
		}
	}
	name := r.consumer
	r.made = time.Time{} // one that is made, of which no answer comes, is this process's, too
	if err := s.DeleteConsumer(ctx, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil, fmt.Errorf("consumer %s: %w", name, err)
	}
	r.window.forgetReplies() // they are to the consumer that is gone
	c, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable:           name,
		Description:       "kvatlas replica " + r.cfg.Replica + ": shows its lag",
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       r.next,
		AckPolicy:         jetstream.AckAllPolicy,
		AckWait:           2*r.cfg.GapWait + time.Minute,
		MaxAckPending:     -1, // the window bounds what is in flight
		InactiveThreshold: r.cfg.ForgetConsumer,
		MemoryStorage:     true, // it is made anew at every start: syncing it to the disk buys nothing
	})
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", name, err)
	}
	r.made = c.CachedInfo().Created
	return c, nil
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
		Stream: r.name, Space: r.space, Partition: r.number, Partitions: int(r.of.Load()), Created: r.mu.created,
		Begin: r.mu.begin, Since: r.since, Position: p.pos, Last: max(r.mu.end, p.pos),
		InFlight: p.inFlight, InFlightBytes: p.bytes, Err: r.mu.err, Voided: r.mu.voided, Stalled: r.mu.loop.stalled(now, r.cfg.StallAfter),
	}
	s.Lag = s.Last - s.Position
	s.Heard, s.Silent = r.contact.last(), r.contact.silent(now, r.cfg)
	if why := r.otherwise(); why != nil {
		s.Stalled = why
	}
	if s.Stalled == nil && s.Lag > 0 {
		s.Stalled = r.mu.idle.stalled(now, r.cfg.StallAfter, r.mu.read, p.pos)
	}
	if s.Lag > 0 && !p.oldest.IsZero() {
		s.LagTime = max(0, r.mu.clock.read(now).Sub(p.oldest))
	}
	if r.mu.compared && p.pos >= r.mu.target && s.Lag <= uint64(max(0, r.cfg.MaxLag)) {
		r.mu.caughtUp = true
	}
	s.CaughtUp = r.mu.caughtUp
	return s
}
