package publish

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// transport is how messages leave the process. The sender goroutine is its
// only user, but for maxMessage.
type transport interface {
	// subject returns where the worker's messages go, until restore.
	subject(namespace string, sp event.Space, worker uint64) string
	// publish starts an attempt to store the message, unless one is under way that needs no
	// copy. How it ended is heard of later, of
	// every attempt, at the latest after 2 Config.AckWait.
	publish(subject string, msg *message) error
	// take returns how attempts ended, as far as that was not taken yet; there may be
	// some after news.
	take() []outcome
	news() <-chan struct{}
	// tell publishes a message that nobody waits for.
	tell(subject string, data []byte) error
	// restore makes the stream again if it is gone.
	restore(ctx context.Context) error
	// grow makes room in a stream that is full, and reports whether there is some.
	grow(ctx context.Context) (bool, error)
	// maxMessage returns how many bytes a message's body may have now.
	maxMessage() int
	close()
}

// outcome is how an attempt to store a message ended.
type outcome struct {
	seq  uint64            // of the message
	try  int               // which of its attempts
	took time.Duration     // since that began
	ack  *jetstream.PubAck // nil if nobody acknowledges
	err  error             // nil: it is stored
}

// outcomes are those that the sender has not taken. Whoever adds never waits: it may hold
// locks of the client that the sender needs.
type outcomes struct {
	more chan struct{} // holds one token
	mu   struct {
		sync.Mutex
		list []outcome
	}
}

func newOutcomes() *outcomes { return &outcomes{more: make(chan struct{}, 1)} }

func (o *outcomes) add(end outcome) {
	o.mu.Lock()
	o.mu.list = append(o.mu.list, end)
	o.mu.Unlock()
	select {
	case o.more <- struct{}{}:
	default:
	}
}

func (o *outcomes) take() []outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.mu.list
	o.mu.list = nil
	return list
}

func (o *outcomes) news() <-chan struct{} { return o.more }

// headerRoom is what NATS counts as part of a message beside its body: the
// message id's header (about 60 bytes), with room to spare.
const headerRoom = 256

// mostMessage is how large a message becomes although the server takes larger
// ones: readers ask for a bounded number of bytes at a time.
const mostMessage = 4 << 20

type jetStream struct {
	*outcomes
	nc        *nats.Conn
	js        jetstream.JetStream
	cfg       Config
	info      stream.Info // that takes the worker's events, as restore found it
	growAgain time.Time

	attempts struct {
		sync.Mutex
		list map[*nats.Msg]attempt // that have not ended
	}
	beat   *held       // the last heartbeat that went with the group
	alone  atomic.Bool // heartbeats go alone: that one was not stored, and who shares the group waits for it
	closed atomic.Bool // what the group has of it is not sent any more
}

// attempt is one of a message's: an acknowledgement that comes after a copy was sent is of
// the first as like as of the copy, and only one of them tells how long they take.
type attempt struct {
	seq   uint64
	try   int
	begun time.Time
}

// growEvery is how often a stream is tried to be enlarged that could not be: it
// is as large as it may be, the server has no room, or this user may not.
const growEvery = time.Minute

func newJetStream(ctx context.Context, cfg Config) (*jetStream, error) {
	t := &jetStream{outcomes: newOutcomes(), nc: cfg.Conn, cfg: cfg}
	t.attempts.list = make(map[*nats.Msg]attempt)
	var err error
	t.js, err = jetstream.New(cfg.Conn,
		jetstream.WithPublishAsyncAckHandler(func(_ jetstream.JetStream, m *nats.Msg, ack *jetstream.PubAck) { t.ended(m, ack, nil) }),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) { t.ended(m, nil, err) }),
		jetstream.WithPublishAsyncTimeout(2*cfg.AckWait),
		jetstream.WithPublishAsyncMaxPending(16*cfg.Window)) // the window and copies, which come ever more rarely, keep it below
	if err != nil {
		return nil, err
	}
	if err := t.restore(ctx); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *jetStream) subject(_ string, _ event.Space, worker uint64) string {
	return t.info.Subject(worker)
}

func (t *jetStream) publish(subject string, msg *message) error {
	switch {
	case msg.held == nil && t.info.Batches:
		begun, seq := time.Now(), msg.seq
		msg.held = &held{subject: subject, id: msg.id, data: msg.data, closed: &t.closed, done: func(ack *jetstream.PubAck, err error) {
			t.add(outcome{seq: seq, try: 1, took: time.Since(begun), ack: ack, err: err})
		}}
		t.cfg.Group.put(t, msg.held)
		return nil
	case msg.held != nil && !msg.held.over.Load():
		return nil // the group sends it again; for a copy beside it the server would refuse a whole batch
	}
	return t.attempt(newMsg(subject, msg.id, msg.data), attempt{msg.seq, msg.tries, time.Now()})
}

// attempt sends a message alone.
func (t *jetStream) attempt(m *nats.Msg, a attempt) error {
	t.attempts.Lock()
	t.attempts.list[m] = a
	t.attempts.Unlock()
	_, err := t.send(m)
	if err != nil {
		t.forget(m)
	}
	return err
}

// ended has the sender hear of the end of an attempt.
func (t *jetStream) ended(m *nats.Msg, ack *jetstream.PubAck, err error) {
	if a, ok := t.forget(m); ok {
		if err == nil {
			t.alone.Store(false)
		}
		t.add(outcome{seq: a.seq, try: a.try, took: time.Since(a.begun), ack: ack, err: err})
	}
}

func (t *jetStream) forget(m *nats.Msg) (attempt, bool) {
	t.attempts.Lock()
	defer t.attempts.Unlock()
	a, ok := t.attempts.list[m]
	delete(t.attempts.list, m)
	return a, ok
}

func (t *jetStream) send(m *nats.Msg) (jetstream.PubAckFuture, error) {
	// The sender retries, in order; the client would not keep it.
	return t.js.PublishMsgAsync(m, jetstream.WithRetryAttempts(0), jetstream.WithStallWait(time.Millisecond))
}

func (t *jetStream) tell(subject string, data []byte) error {
	if !t.info.Batches || subject != t.info.Subject(t.cfg.Worker) {
		return t.nc.Publish(subject, data)
	}
	if t.beat != nil && !t.beat.over.Load() {
		return errBusy // the one before has not gone yet
	}
	data = slices.Clone(data)
	if t.alone.Load() {
		return t.attempt(newMsg(subject, "", data), attempt{}) // of no message: those are numbered from 1
	}
	t.beat = &held{subject: subject, data: data, closed: &t.closed, done: func(_ *jetstream.PubAck, err error) { t.alone.Store(err != nil) }}
	t.cfg.Group.put(t, t.beat)
	return nil
}

var errBusy = errors.New("the heartbeat before waits for the stream")

func (t *jetStream) restore(ctx context.Context) error {
	info, err := stream.EnsureFor(ctx, t.js, t.cfg.Namespace, t.cfg.Space, t.cfg.Worker, t.cfg.Stream)
	if err == nil {
		t.info = info
	}
	return err
}

func (t *jetStream) grow(ctx context.Context) (bool, error) {
	if time.Now().Before(t.growAgain) {
		return false, nil
	}
	ok, err := stream.Grow(ctx, t.js, t.info.Name)
	if !ok {
		t.growAgain = time.Now().Add(growEvery)
	}
	return ok, err
}

func (t *jetStream) maxMessage() int {
	n := min(int(t.nc.MaxPayload()), mostMessage)
	if t.info.MaxMessage > 0 {
		n = min(n, t.info.MaxMessage)
	}
	return n - headerRoom
}

func (t *jetStream) close() {
	t.closed.Store(true)
	t.js.CleanupPublisher()
}

// tooLarge reports whether no retry can help the message.
func tooLarge(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, nats.ErrMaxPayload) ||
		errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum
}

// gone reports whether the stream may not exist.
func gone(err error) bool {
	return errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders)
}

// disconnected is the reason of what fails on this side.
const disconnected = "disconnected"

// reason is a failed attempt's label in the metrics.
func reason(err error) string {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, jetstream.ErrAsyncPublishTimeout):
		return "timeout"
	case gone(err):
		return "no_stream"
	case errors.As(err, &api):
		return "refused" // by the server: the stream is full, or has more to do than it queues
	}
	return disconnected
}

// ErrUnsafeStream is wrapped by the error for a stream that loses
// acknowledged messages or belongs to something else.
var ErrUnsafeStream = stream.ErrUnsafe
