package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// fakeBatches stands for the server: it takes batches as JetStream does, and answers what
// the test says.
type fakeBatches struct {
	sync.Mutex
	stored  []string
	batches [][]string
	each    [][]string
	answer  func(batch []string) error // nil error: it is stored
	entered chan struct{}              // told of a call, and
	block   chan struct{}              // a call waits until it can be read from
}

func (f *fakeBatches) outbox() *outbox {
	return &outbox{wait: time.Second, most: mostBatch, ended: func() {}, commit: f.commit, sendEach: f.sendEach}
}

func newFakeBatches() *fakeBatches {
	return &fakeBatches{entered: make(chan struct{}, 100), block: make(chan struct{})}
}

func (f *fakeBatches) enter() {
	f.entered <- struct{}{}
	<-f.block
}

func ids(batch []*held) (list []string) {
	for _, h := range batch {
		list = append(list, h.id)
	}
	return list
}

func (f *fakeBatches) commit(batch []*held, _ time.Duration) (*jetstream.PubAck, error) {
	f.enter()
	f.Lock()
	defer f.Unlock()
	f.batches = append(f.batches, ids(batch))
	for _, id := range ids(batch) {
		if slices.Contains(f.stored, id) {
			return nil, &jetstream.APIError{ErrorCode: 10201, Description: "batch contains duplicate message id"}
		}
	}
	if f.answer != nil {
		if err := f.answer(ids(batch)); err != nil {
			return nil, err
		}
	}
	f.stored = append(f.stored, ids(batch)...)
	return &jetstream.PubAck{}, nil
}

func (f *fakeBatches) sendEach(few []*held, _ time.Duration) {
	f.enter()
	f.Lock()
	defer f.Unlock()
	f.each = append(f.each, ids(few))
	for _, h := range few {
		f.stored = append(f.stored, h.id)
		h.end(&jetstream.PubAck{}, nil)
	}
}

func putAll(b *outbox, from, to int) (all []chan error) {
	for i := from; i < to; i++ {
		h := &held{subject: "s", id: fmt.Sprint(i), data: make([]byte, 10), closed: new(atomic.Bool)}
		ended := make(chan error, 1)
		h.done = func(_ *jetstream.PubAck, err error) { ended <- err }
		all = append(all, ended)
		b.put(h)
	}
	return all
}

func awaitAll(t *testing.T, all []chan error) (acked int, errs []error) {
	t.Helper()
	for _, ended := range all {
		select {
		case err := <-ended:
			if err != nil {
				errs = append(errs, err)
			} else {
				acked++
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("a message has no outcome")
		}
	}
	return acked, errs
}

// What comes while the server has a batch is the next one, in order and all of it.
func TestWhatWaitsGoesTogether(t *testing.T) {
	f := newFakeBatches()
	b := f.outbox()
	all := putAll(b, 0, 1) // goes alone
	<-f.entered
	all = append(all, putAll(b, 1, 1+2*mostBatch+5)...)
	close(f.block)
	if acked, errs := awaitAll(t, all); acked != len(all) || errs != nil {
		t.Fatalf("%d of %d acknowledged, %v", acked, len(all), errs)
	}
	f.Lock()
	defer f.Unlock()
	if len(f.stored) != len(all) || !slices.IsSortedFunc(f.stored, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return slices.Compare([]byte(a), []byte(b))
	}) {
		t.Errorf("%d stored of %d, or not in order", len(f.stored), len(all))
	}
	if len(f.batches) > 3 || len(f.each) > 2 {
		t.Errorf("%d batches and %d rows of single messages", len(f.batches), len(f.each))
	}
}

// A batch that nobody answers, or of which a part is lost, goes again as it is. If it was
// stored all the same it is refused, and its messages are no longer the group's: their
// publishers send them one by one, and the server knows their ids.
func TestABatchGoesAgainAsItIs(t *testing.T) {
	for name, c := range map[string]struct {
		answers []error
		stored  bool // although it was not acknowledged
		acked   bool
	}{
		"late":             {answers: []error{jetstream.ErrAsyncPublishTimeout, nil}, acked: true},
		"incomplete":       {answers: []error{&jetstream.APIError{ErrorCode: batchIncomplete}, nil}, acked: true},
		"stored and late":  {answers: []error{jetstream.ErrAsyncPublishTimeout}, stored: true},
		"refused":          {answers: []error{&jetstream.APIError{ErrorCode: 10077, Description: "maximum bytes exceeded"}}},
		"larger than told": {answers: []error{&jetstream.APIError{ErrorCode: batchTooLarge}, nil, nil}, acked: true},
	} {
		f := newFakeBatches()
		n := 0
		f.answer = func(batch []string) error {
			if n++; n > len(c.answers) {
				return errors.New("asked too often")
			}
			if c.stored {
				f.stored = append(f.stored, batch...)
			}
			return c.answers[n-1]
		}
		b := f.outbox()
		first := putAll(b, 0, 1)
		<-f.entered
		rest := putAll(b, 1, 31)
		close(f.block)
		awaitAll(t, first)
		acked, errs := awaitAll(t, rest)
		if c.acked && acked != 30 || !c.acked && len(errs) != 30 {
			t.Errorf("%s: %d acknowledged, %v", name, acked, errs)
		}
		f.Lock()
		if len(f.batches) > 1 && name != "larger than told" && !slices.Equal(f.batches[0], f.batches[1]) {
			t.Errorf("%s: another batch was sent: %v", name, f.batches)
		}
		f.Unlock()
	}
}

// One message of a batch that the server does not take for its size is no other's loss: each
// is sent alone then, and tells of itself.
func TestOneMessageTooLargeIsNoOthersLoss(t *testing.T) {
	for _, why := range []error{
		fmt.Errorf("publish: a batch: %w", nats.ErrMaxPayload),
		fmt.Errorf("publish: a batch: %w", &jetstream.APIError{ErrorCode: jetstream.JSErrCodeStreamMessageExceedsMaximum}),
	} {
		f := newFakeBatches()
		f.answer = func([]string) error { return why }
		b := f.outbox()
		first := putAll(b, 0, 1)
		<-f.entered
		rest := putAll(b, 1, 31)
		close(f.block)
		awaitAll(t, first)
		_, errs := awaitAll(t, rest)
		if len(errs) != 30 {
			t.Errorf("%v: %d messages failed, want 30", why, len(errs))
		}
		for _, err := range errs {
			if tooLarge(err) {
				t.Fatalf("a message is given up as too large by the error of a batch: %v", err)
			}
		}
	}
}

// A part that is missing each time, or no answer, as the server says nothing of a message that
// it refuses, keeps the others waiting for a moment, not for as long as acknowledgements are
// waited for.
func TestABatchThatStaysIncompleteIsGivenBackSoon(t *testing.T) {
	for _, why := range []error{&jetstream.APIError{ErrorCode: batchIncomplete}, jetstream.ErrAsyncPublishTimeout} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeBatches()
			close(f.block)
			f.entered = make(chan struct{}, 1<<20)
			f.answer = func([]string) error {
				if why == jetstream.ErrAsyncPublishTimeout {
					time.Sleep(leastCommit)
				}
				return why
			}
			b := f.outbox()
			b.wait = time.Minute
			b.busy = true // until all are there
			all := putAll(b, 0, 30)
			begun := time.Now()
			go b.run()
			if _, errs := awaitAll(t, all); len(errs) != 30 {
				t.Errorf("%d messages failed, want 30", len(errs))
			}
			if took := time.Since(begun); took > 10*time.Second || len(f.batches) > 10 {
				t.Errorf("%v: given back after %v and %d batches", why, took, len(f.batches))
			}
		})
	}
}

// What a closed publisher left is not sent after it: its worker may have left meanwhile.
func TestNothingIsSentOfAClosedPublisher(t *testing.T) {
	f := newFakeBatches()
	answers := 0
	f.answer = func([]string) error {
		if answers++; answers == 1 {
			return jetstream.ErrAsyncPublishTimeout // and not stored
		}
		return nil
	}
	b := f.outbox()
	first := putAll(b, 0, 1)
	<-f.entered
	var closed atomic.Bool
	leave := func(id string) {
		b.put(&held{subject: "s", id: id, data: make([]byte, 10), closed: &closed, done: func(*jetstream.PubAck, error) {}})
	}
	leave("in a batch")
	all := putAll(b, 1, 1+2*leastBatch)
	f.block <- struct{}{} // the first goes
	awaitAll(t, first)
	<-f.entered // the batch does
	leave("queued")
	all = append(all, putAll(b, 100, 103)...)
	closed.Store(true)
	close(f.block)
	if acked, errs := awaitAll(t, all); acked != len(all) || errs != nil {
		t.Errorf("%d of %d acknowledged, %v", acked, len(all), errs)
	}
	f.Lock()
	defer f.Unlock()
	if slices.Contains(f.stored, "in a batch") || slices.Contains(f.stored, "queued") {
		t.Errorf("messages of a closed publisher were sent: %q", f.stored)
	}
}

// onServer is a configuration with a server of its own, whose only user may not publish on
// those subjects.
func onServer(t *testing.T, change func(*Config), denied ...string) Config {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
		Users: []*server.User{{Username: "u", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: denied}}}}})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(s.Shutdown)
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("no server")
	}
	nc, err := nats.Connect(s.ClientURL(), nats.UserInfo("u", ""), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return testConfig(t, func(c *Config) {
		c.Conn, c.Stream = nc, StreamConfig{MaxBytes: 64 << 20}
		change(c)
	})
}

// changeStream changes the stream's configuration under its publishers.
func changeStream(t *testing.T, cfg Config, change func(*jetstream.StreamConfig)) {
	t.Helper()
	js, err := jetstream.New(cfg.Conn)
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(t.Context(), stream.Name(cfg.Namespace, cfg.Space))
	if err != nil {
		t.Fatal(err)
	}
	c := st.CachedInfo().Config
	change(&c)
	if _, err := js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// Publishers whose stream takes no batches any more send alone, and no batch each time first.
func TestAStreamThatTakesBatchesNoLonger(t *testing.T) {
	cfg := onServer(t, func(c *Config) { c.BatchEvents, c.Stream.Batches = 1, true })
	p, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	changeStream(t, cfg, func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false })
	refused := func() uint64 { return counter(cfg, `kvatlas_publish_retries_total{reason="refused"}`) }
	publish := func() {
		for n := range uint64(500) {
			if err := p.Stored(t.Context(), 0, event.Device, Root(), []uint64{n}, []uint64{n}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		if publish(); refused() > 0 {
			break
		}
	}
	before := refused()
	if before == 0 {
		t.Fatal("no batch was refused")
	}
	for range 5 {
		publish()
	}
	if n := refused() - before; n > 0 {
		t.Errorf("%d messages more were refused in batches", n)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A stream that takes smaller messages than before gets smaller ones: what was on its way is
// lost, and what comes is not.
func TestAStreamThatTakesSmallerMessages(t *testing.T) {
	cfg := onServer(t, func(*Config) {})
	p, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	changeStream(t, cfg, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 2000 })
	lost := func() uint64 { return counter(cfg, `kvatlas_publish_dropped_events_total{reason="too_large"}`) }
	publish := func() {
		if err := p.Stored(t.Context(), 0, event.Device, Root(), seq(1, 1000), seq(1, 1000)); err != nil {
			t.Fatal(err)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	publish()
	before := lost()
	if before == 0 {
		t.Fatal("the message was not too large")
	}
	publish()
	if n := lost() - before; n > 0 {
		t.Errorf("%d events more are lost", n)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// What a publisher has sent behind a message that was not stored comes back to it, to be
// sent after that one; what others have sent goes on.
func TestWhatIsBehindAFailureIsGivenBack(t *testing.T) {
	for name, first := range map[string]int{"in a batch": 2 * leastBatch, "alone": 1} {
		f := newFakeBatches()
		tries := 0
		f.answer = func([]string) error {
			if tries++; tries == 1 {
				return errors.New("the server is gone")
			}
			return nil
		}
		b := f.outbox()
		b.sendEach = func(few []*held, _ time.Duration) {
			f.enter()
			for _, h := range few {
				h.end(nil, f.answer(ids(few)))
			}
		}
		mine, others := new(atomic.Bool), new(atomic.Bool)
		before, behind := make(chan error, first), make(chan error, 1)
		put := func(id string, of *atomic.Bool, ended chan error) {
			b.put(&held{subject: "s", id: id, closed: of, done: func(_ *jetstream.PubAck, err error) { ended <- err }})
		}
		b.busy = true // nothing is taken until all of the first batch is there
		for i := range first {
			put(fmt.Sprint("before", i), mine, before)
		}
		go b.run()
		<-f.entered
		put("behind", mine, behind)
		other := make(chan error, 2*leastBatch)
		for i := range 2 * leastBatch {
			put(fmt.Sprint("other", i), others, other)
		}
		close(f.block)
		if err := <-before; err == nil {
			t.Fatalf("%s: the first was stored", name)
		}
		if err := <-behind; err == nil {
			t.Errorf("%s: a message overtook the one before it", name)
		}
		for range 2 * leastBatch {
			if err := <-other; err != nil {
				t.Errorf("%s: another publisher's: %v", name, err)
			}
		}
	}
}

// The server takes nothing of a worker that its connection has no permission for, and says
// nothing to the batch: whoever shares that publishes all the same.
func TestAWorkerWithoutPermissionKeepsNoOtherWaiting(t *testing.T) {
	group := &Group{}
	cfg := onServer(t, func(c *Config) {
		c.Group, c.BatchEvents, c.Stream.Batches, c.Heartbeat = group, 1, true, 50*time.Millisecond
	}, stream.Subject("default", testSpace, 0))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var all []*Publisher
	for id := range uint64(30) {
		cfg.Worker = id
		p, err := Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close(ended) })
		all = append(all, p)
	}
	rhythm := time.NewTicker(50 * time.Millisecond) // a heartbeat's time
	defer rhythm.Stop()
	for n := range uint64(20) {
		for _, p := range all[1:] { // that one has heartbeats only
			if err := p.Stored(t.Context(), 0, event.Device, Root(), []uint64{n}, []uint64{n}); err != nil {
				t.Fatal(err)
			}
		}
		<-rhythm.C
	}
	// How soon is TestABatchThatStaysIncompleteIsGivenBackSoon's.
	waiting, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	for _, p := range all[1:] {
		if err := p.Flush(waiting); err != nil {
			t.Fatal(err)
		}
	}
}
