package publish

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
)

// fakeStream is a stream in memory whose link fails as a seed says. An attempt
// ends in one of: stored and acknowledged; stored, acknowledgement lost;
// refused; lost on the way; failed at once. Whether it is stored is decided at
// the call, in order, as on one connection to one server.
type fakeStream struct {
	*outcomes
	rng     *rand.Rand
	faults  float64 // probability that an attempt does not simply succeed
	delay   time.Duration
	ackWait time.Duration
	max     int

	mu struct {
		sync.Mutex
		stored   [][]byte // in stream order
		seen     map[string]bool
		told     [][]byte // heartbeats, and
		toldAt   []int    // how many messages were stored before each
		refuse   error    // every attempt ends so while set
		restores int
		attempts int
		flying   int // not answered
		mostFly  int
	}
}

func newFakeStream(seed uint64, faults float64) *fakeStream {
	f := &fakeStream{
		outcomes: newOutcomes(), rng: rand.New(rand.NewPCG(seed, 1)), faults: faults,
		delay: time.Millisecond, ackWait: 100 * time.Millisecond, max: 1 << 20,
	}
	f.mu.seen = make(map[string]bool)
	return f
}

var errLink = errors.New("link down")

func (f *fakeStream) publish(_ string, msg *message) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.attempts++
	if f.mu.refuse != nil {
		f.answer(msg, nil, f.mu.refuse, f.delay)
		return nil
	}
	store := func() *jetstream.PubAck {
		ack := &jetstream.PubAck{Stream: "s", Duplicate: f.mu.seen[msg.id]}
		if !ack.Duplicate {
			f.mu.seen[msg.id] = true
			f.mu.stored = append(f.mu.stored, append([]byte(nil), msg.data...))
		}
		return ack
	}
	delay := f.delay + time.Duration(f.rng.Int64N(int64(f.delay)))
	if f.rng.Float64() >= f.faults {
		f.answer(msg, store(), nil, delay)
		return nil
	}
	switch f.rng.IntN(4) {
	case 0:
		store()
		f.answer(msg, nil, jetstream.ErrAsyncPublishTimeout, f.ackWait)
	case 1:
		f.answer(msg, nil, &jetstream.APIError{Code: 503, ErrorCode: 10077, Description: "maximum bytes exceeded"}, delay)
	case 2:
		f.answer(msg, nil, jetstream.ErrAsyncPublishTimeout, f.ackWait)
	default:
		return errLink
	}
	return nil
}

// answer ends an attempt after the delay. The caller holds mu.
func (f *fakeStream) answer(msg *message, ack *jetstream.PubAck, err error, delay time.Duration) {
	f.mu.flying++
	f.mu.mostFly = max(f.mu.mostFly, f.mu.flying)
	try := msg.tries
	time.AfterFunc(delay, func() {
		f.mu.Lock()
		f.mu.flying--
		f.mu.Unlock()
		f.add(outcome{seq: msg.seq, try: try, took: delay, ack: ack, err: err})
	})
}

func (f *fakeStream) tell(_ string, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.told = append(f.mu.told, append([]byte(nil), data...))
	f.mu.toldAt = append(f.mu.toldAt, len(f.mu.stored))
	return nil
}

func (f *fakeStream) restore(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.restores++
	return nil
}

func (f *fakeStream) subject(string, event.Space, uint64) string { return "s" }

func (f *fakeStream) grow(context.Context) (bool, error) { return false, nil }
func (f *fakeStream) maxMessage() int                    { return f.max }
func (f *fakeStream) close()                             {}

func (f *fakeStream) setRefuse(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.refuse = err
}
