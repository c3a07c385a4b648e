package publish

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
)

// batch gathers events until they are encoded. Its memory is reused.
type batch struct {
	events []event.Event
	hashes []uint64  // what the events' slices point into
	bytes  int       // their encoded size, at most
	since  time.Time // when the first event came
}

// add appends a copy of the event. Growing hashes leaves earlier events in
// the old array, which nothing writes any more.
func (b *batch) add(ev event.Event, cost int) {
	ev.Engine = b.copy(ev.Engine)
	ev.Local = b.copy(ev.Local)
	b.events = append(b.events, ev)
	b.bytes += cost
}

func (b *batch) copy(h []uint64) []uint64 {
	if len(h) == 0 {
		return nil
	}
	start := len(b.hashes)
	b.hashes = append(b.hashes, h...)
	return b.hashes[start:len(b.hashes):len(b.hashes)]
}

// message is an encoded batch on its way.
type message struct {
	seq    uint64 // of the publisher's messages
	id     string
	data   []byte
	events int
	cost   int // bytes that it holds of Publisher.mu.pending
	last   []event.Position

	// Of the sender only.
	sent   time.Time // first attempt
	next   time.Time // when it is sent again, unless it is acknowledged
	tries  int
	fails  int   // attempts of which it is known that they failed
	err    error // why the last of those did; nil after another attempt
	stored bool
	ack    *jetstream.PubAck // if it is stored; nil if nobody acknowledges
	took   time.Duration     // since the attempt that is acknowledged
	held   *held             // what a Group has of it; nil: nothing
}

// seal encodes the events under the header and empties the batch.
func (b *batch) seal(header *event.Batch, nonce, seq uint64) *message {
	header.Events = b.events
	msg := &message{
		seq:    seq,
		id:     messageID(nonce, seq),
		data:   event.AppendBatch(make([]byte, 0, event.EncodedSize(header)), header),
		events: len(b.events),
		cost:   b.bytes,
	}
	for i := range b.events {
		msg.note(b.events[i].DPRank, b.events[i].ID)
	}
	clear(b.events)
	b.events, b.hashes, b.bytes = b.events[:0], b.hashes[:0], 0
	return msg
}

// note keeps the last id of each rank; a worker has few.
func (m *message) note(dpRank uint32, id uint64) {
	for i := range m.last {
		if m.last[i].DPRank == dpRank {
			m.last[i].ID = id
			return
		}
	}
	m.last = append(m.last, event.Position{DPRank: dpRank, ID: id})
}

// messageID names a message for the server's duplicate detection. The nonce
// is the Publisher's, not the engine's incarnation: a publisher that resumes
// an incarnation counts its messages from 1 again.
func messageID(nonce, seq uint64) string { return fmt.Sprintf("%016x-%d", nonce, seq) }
