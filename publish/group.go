package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A Group is of publishers of one process that share a connection: what they send to a
// stream that takes batches (StreamConfig.Batches) goes together. The server syncs a batch
// once, where each message alone costs a sync, within the stream's lock. The zero value is
// ready.
type Group struct {
	mu    sync.Mutex
	boxes map[boxKey]*outbox
}

// boxKey is what messages go together by: an order and a user's permissions are of a connection.
type boxKey struct {
	nc     *nats.Conn
	stream string
}

// put gives a message to the outbox of its stream.
func (g *Group) put(t *jetStream, h *held) {
	key := boxKey{t.nc, t.info.Name}
	g.mu.Lock()
	if g.boxes == nil {
		g.boxes = make(map[boxKey]*outbox)
	}
	box := g.boxes[key]
	if box == nil {
		box = &outbox{commit: t.commit, sendEach: t.sendEach, wait: t.cfg.AckWait, most: mostBatch}
		box.ended = func() {
			if g.forget(key, box); t.closed.Load() {
				t.js.CleanupPublisher() // it has sent for others since
			}
		}
		g.boxes[key] = box
	}
	box.put(h) // before the lock is let go: forget takes away only what is empty
	g.mu.Unlock()
}

// forget takes an outbox away that has nothing to send.
func (g *Group) forget(key boxKey, box *outbox) {
	g.mu.Lock()
	defer g.mu.Unlock()
	box.mu.Lock()
	defer box.mu.Unlock()
	if !box.busy && g.boxes[key] == box {
		delete(g.boxes, key)
	}
}

// held is a message that a Group has to send. It is in one batch only, or in that batch
// sent again: the server refuses a whole batch for one message that it has already.
type held struct {
	subject, id string
	data        []byte
	done        func(*jetstream.PubAck, error) // told how it ended, once
	over        atomic.Bool                    // it has ended,
	err         error                          // so: nil if it is stored
	closed      *atomic.Bool                   // its publisher is: it is not sent any more
}

// left returns those whose publishers are open.
func left(list []*held) []*held {
	return slices.DeleteFunc(list, func(h *held) bool { return h.closed.Load() })
}

func (h *held) end(ack *jetstream.PubAck, err error) {
	h.err = err
	h.over.Store(true)
	h.done(ack, err)
}

// The bounds of a batch. One costs the server a dozen syncs, in files of its own first; and
// it takes 1,000 messages unless told, and keeps them twice while it stores them.
const (
	leastBatch     = 12
	mostBatch      = 500
	mostBatchBytes = 4 << 20
)

// leastCommit is how long a batch waits for its acknowledgement, at least, before it is
// sent again. A copy costs the server as many syncs as the batch did.
const leastCommit = time.Second

// outbox sends what is for one stream on one connection: a batch at a time. What comes
// while the server syncs one is the next, so that a slow disk has larger ones.
type outbox struct {
	commit   func([]*held, time.Duration) (*jetstream.PubAck, error) // all as one
	sendEach func([]*held, time.Duration)                            // one by one, and ends them
	ended    func()
	wait     time.Duration // for an acknowledgement, in all

	// Of the sending goroutine.
	usual time.Duration // that an acknowledgement takes, lately

	mu    sync.Mutex
	queue []*held // bounded by the publishers' windows
	busy  bool    // there is a sending goroutine; it ends when there is nothing to send
	most  int     // messages of a batch: fewer where the server says so
}

func (b *outbox) put(h *held) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = append(b.queue, h)
	if !b.busy {
		b.busy = true
		go b.run() // it ends with the queue, each step of it within b.wait
	}
}

func (b *outbox) run() {
	defer b.ended()
	for batch := b.take(); batch != nil; batch = b.take() {
		if len(batch) < leastBatch {
			begun := time.Now()
			b.sendEach(batch, b.patience())
			b.took(time.Since(begun))
			b.giveBack(batch)
			continue
		}
		ack, err := b.send(batch)
		if isCode(err, batchTooLarge) {
			b.shrink(batch)
			continue
		}
		if tooLarge(err) { // one is, and which is not said: each tells of itself when it is sent alone
			err = fmt.Errorf("publish: a message of the batch is too large: %s", err.Error())
		}
		for _, h := range batch {
			h.end(ack, err)
		}
		b.giveBack(batch)
	}
}

// giveBack ends what publishers have put behind their messages of a batch that were not
// stored: sent now it would overtake those, and readers would ask for them.
func (b *outbox) giveBack(batch []*held) {
	failed := make(map[*atomic.Bool]error)
	for _, h := range batch {
		if h.err != nil {
			failed[h.closed] = h.err
		}
	}
	if len(failed) == 0 {
		return
	}
	var back []*held
	b.mu.Lock()
	b.queue = slices.DeleteFunc(b.queue, func(h *held) bool {
		if failed[h.closed] != nil {
			back = append(back, h)
		}
		return failed[h.closed] != nil
	})
	b.mu.Unlock()
	for _, h := range back {
		err := failed[h.closed]
		if tooLarge(err) { // which it is not
			err = fmt.Errorf("publish: the message before it was not stored: %s", err.Error())
		}
		h.end(nil, err)
	}
}

// take returns what goes next; nil says that the goroutine is to end.
func (b *outbox) take() []*held {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = left(b.queue)
	n, bytes := 0, 0
	for n < min(len(b.queue), b.most) {
		if bytes += len(b.queue[n].data) + headerRoom; n > 0 && bytes > mostBatchBytes {
			break
		}
		n++
	}
	batch := b.queue[:n:n]
	if b.queue = b.queue[n:]; len(b.queue) == 0 {
		b.queue = nil
	}
	if n == 0 {
		b.busy = false
		return nil
	}
	return batch
}

// shrink puts a batch back that the server does not take for its size.
func (b *outbox) shrink(batch []*held) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most = max(1, len(batch)/2)
	b.queue = append(batch, b.queue...)
}

// send sends a batch until it is acknowledged or refused. One that nobody answers, or of
// which the server has lost a part, goes again as it is, a few times. What is refused then,
// if only because the server has stored it and the acknowledgement was lost, its publishers
// send one by one: of a message that it takes from nobody, or not of this connection, the
// server says no more to a batch than that a part is missing, or nothing at all.
func (b *outbox) send(batch []*held) (*jetstream.PubAck, error) {
	begun := time.Now()
	for late, wait := 0, retryBatch; ; {
		tried := time.Now()
		ack, err := b.commit(batch, min(b.patience()<<late, b.wait))
		b.took(time.Since(tried))
		switch {
		case errors.Is(err, jetstream.ErrAsyncPublishTimeout) && late < mostLate && time.Since(begun) < b.wait:
			late++
		case isCode(err, batchIncomplete) && wait < mostRetryBatch:
			wait *= 2
		default:
			return ack, err
		}
		time.Sleep(rand.N(wait)) // of many processes some have too many batches at the server
		if batch = left(slices.Clone(batch)); len(batch) == 0 {
			return ack, err
		}
	}
}

// mostLate is how often a batch goes again that nobody answers: a server that has too much
// to do is waited for twice as long each time.
const mostLate = 2

// patience is how long an acknowledgement is waited for.
func (b *outbox) patience() time.Duration { return min(max(leastCommit, 4*b.usual), b.wait) }

func (b *outbox) took(d time.Duration) { b.usual += (d - b.usual) / 8 }

// The bounds of the waits before a batch goes again: twice as long each time that it is incomplete.
const (
	retryBatch     = 50 * time.Millisecond
	mostRetryBatch = 64 * retryBatch
)

// The server's error codes (nats-server, errors.json).
const (
	batchesOff      jetstream.ErrorCode = 10174 // the stream does not take them any more
	batchIncomplete jetstream.ErrorCode = 10176 // a part is missing, or too many batches are under way
	batchTooLarge   jetstream.ErrorCode = 10199
)

func isCode(err error, code jetstream.ErrorCode) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == code
}

// The headers of an atomic batch of JetStream.
const (
	batchID       = "Nats-Batch-Id"
	batchSequence = "Nats-Batch-Sequence"
	batchCommit   = "Nats-Batch-Commit"
)

// commit sends messages as one batch, and waits for the acknowledgement of all.
func (t *jetStream) commit(batch []*held, wait time.Duration) (*jetstream.PubAck, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	id := strconv.FormatUint(rand.Uint64(), 36)
	var answer *nats.Msg
	for i, h := range batch {
		m := newMsg(h.subject, h.id, h.data)
		m.Header[batchID], m.Header[batchSequence] = []string{id}, []string{strconv.Itoa(i + 1)}
		var err error
		if i < len(batch)-1 {
			err = t.nc.PublishMsg(m)
		} else {
			m.Header[batchCommit] = []string{"1"}
			answer, err = t.nc.RequestMsgWithContext(ctx, m)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = jetstream.ErrAsyncPublishTimeout
		}
		if err != nil {
			return nil, fmt.Errorf("publish: a batch: %w", err)
		}
	}
	var ack struct {
		jetstream.PubAck
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return nil, fmt.Errorf("publish: the acknowledgement of a batch: %w", err)
	}
	if ack.Error != nil {
		return nil, fmt.Errorf("publish: a batch: %w", ack.Error)
	}
	return &ack.PubAck, nil
}

// sendEach sends messages one by one, and waits for the acknowledgement of each.
func (t *jetStream) sendEach(few []*held, wait time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	sent := make([]jetstream.PubAckFuture, len(few))
	for i, h := range few {
		var err error
		if sent[i], err = t.send(newMsg(h.subject, h.id, h.data)); err != nil {
			h.end(nil, err)
		}
	}
	for i, h := range few {
		if sent[i] == nil {
			continue
		}
		select {
		case ack := <-sent[i].Ok():
			h.end(ack, nil)
		case err := <-sent[i].Err():
			h.end(nil, err)
		case <-ctx.Done():
			h.end(nil, jetstream.ErrAsyncPublishTimeout)
		}
	}
}

// newMsg returns a message with an id that makes its copies one, unless it has none.
func newMsg(subject, id string, data []byte) *nats.Msg {
	m := &nats.Msg{Subject: subject, Data: data, Header: nats.Header{}}
	if id != "" {
		m.Header[jetstream.MsgIDHeader] = []string{id}
	}
	return m
}
