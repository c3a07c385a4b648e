package publish

import (
	"context"
	"errors"
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
	// publish starts an attempt to store the message; the future says how it
	// ended, within Config.AckWait.
	publish(subject, id string, data []byte) (jetstream.PubAckFuture, error)
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

// headerRoom is what NATS counts as part of a message beside its body: the
// message id's header (about 60 bytes), with room to spare.
const headerRoom = 256

// mostMessage is how large a message becomes although the server takes larger
// ones: readers ask for a bounded number of bytes at a time.
const mostMessage = 4 << 20

type jetStream struct {
	nc        *nats.Conn
	js        jetstream.JetStream
	cfg       Config
	info      stream.Info // that takes the worker's events, as restore found it
	growAgain time.Time
}

// growEvery is how often a stream is tried to be enlarged that could not be: it
// is as large as it may be, the server has no room, or this user may not.
const growEvery = time.Minute

func newJetStream(ctx context.Context, cfg Config) (*jetStream, error) {
	js, err := jetstream.New(cfg.Conn,
		jetstream.WithPublishAsyncTimeout(cfg.AckWait),
		jetstream.WithPublishAsyncMaxPending(16*cfg.Window)) // the window and copies within AckWait keep it below
	if err != nil {
		return nil, err
	}
	t := &jetStream{nc: cfg.Conn, js: js, cfg: cfg}
	if err := t.restore(ctx); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *jetStream) subject(_ string, _ event.Space, worker uint64) string {
	return t.info.Subject(worker)
}

func (t *jetStream) publish(subject, id string, data []byte) (jetstream.PubAckFuture, error) {
	return t.js.PublishMsgAsync(
		&nats.Msg{Subject: subject, Data: data, Header: nats.Header{jetstream.MsgIDHeader: []string{id}}},
		// The sender retries, in order; the client would not keep it.
		jetstream.WithRetryAttempts(0), jetstream.WithStallWait(time.Millisecond))
}

func (t *jetStream) tell(subject string, data []byte) error { return t.nc.Publish(subject, data) }

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

func (t *jetStream) close() { t.js.CleanupPublisher() }

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
		return "refused" // by the server: most often the stream is full
	}
	return disconnected
}

// ErrUnsafeStream is wrapped by the error for a stream that loses
// acknowledged messages or belongs to something else.
var ErrUnsafeStream = stream.ErrUnsafe
