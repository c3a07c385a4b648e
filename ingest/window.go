package ingest

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// window tracks the messages of one stream that are read and not applied yet,
// in stream order. The reader adds, whoever is done with a message completes
// it.
type window struct {
	maxMessages, maxBytes int

	mu struct {
		sync.Mutex
		// entries[head:] are in stream order; the first of them is number
		// first. Those in front of head are free.
		entries []entry
		head    int
		first   uint64
		bytes   int

		pos     uint64    // highest sequence up to which everything is done
		posTime time.Time // when that message was stored
		stored  time.Time // the same if that message is the one at pos, else zero
		reply   string    // acknowledges the message at pos; empty: done before
		room    chan struct{}
	}
}

// entry is one message.
type entry struct {
	seq   uint64
	at    time.Time // when the stream stored it
	reply string    // where its acknowledgement goes
	bytes int
	done  bool
	skip  bool // no message: skipTo's
}

func newWindow(maxMessages, maxBytes int) *window {
	return &window{maxMessages: maxMessages, maxBytes: maxBytes}
}

// add enters a message and returns its number for complete. It waits for room;
// a message larger than all the room there is gets in alone.
func (w *window) add(ctx context.Context, e entry) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.fitsLocked(e.bytes) {
		if w.mu.room == nil {
			w.mu.room = make(chan struct{})
		}
		room := w.mu.room
		w.mu.Unlock()
		var err error
		select {
		case <-room:
		case <-ctx.Done():
			err = fmt.Errorf("waiting for room: %w", ctx.Err())
		}
		w.mu.Lock()
		if err != nil {
			return 0, err
		}
	}
	// Moving half of it at most keeps the cost of an entry constant.
	if 2*w.mu.head >= len(w.mu.entries) && len(w.mu.entries) == cap(w.mu.entries) {
		n := copy(w.mu.entries, w.mu.entries[w.mu.head:])
		clear(w.mu.entries[n:])
		w.mu.entries, w.mu.head = w.mu.entries[:n], 0
	}
	w.mu.entries = append(w.mu.entries, e)
	w.mu.bytes += e.bytes
	return w.mu.first + uint64(len(w.mu.entries)-w.mu.head) - 1, nil
}

func (w *window) fitsLocked(bytes int) bool {
	n := len(w.mu.entries) - w.mu.head
	return n == 0 || n < w.maxMessages && w.mu.bytes+bytes <= w.maxBytes
}

// complete notes that the message with the number is applied or skipped.
func (w *window) complete(number uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := &w.mu.entries[w.mu.head+int(number-w.mu.first)]
	e.done = true
	w.mu.bytes -= e.bytes
	w.advanceLocked()
}

// advanceLocked takes out what is done in front.
func (w *window) advanceLocked() {
	for w.mu.head < len(w.mu.entries) && w.mu.entries[w.mu.head].done {
		e := &w.mu.entries[w.mu.head]
		if e.seq > w.mu.pos {
			w.mu.pos, w.mu.stored = e.seq, e.at
		}
		if !e.skip {
			w.mu.posTime, w.mu.reply = e.at, e.reply
		}
		*e = entry{}
		w.mu.head++
		w.mu.first++
	}
	if w.mu.head == len(w.mu.entries) {
		w.mu.entries, w.mu.head = w.mu.entries[:0], 0
	}
	if w.mu.room != nil {
		close(w.mu.room)
		w.mu.room = nil
	}
}

// full reports whether the reader has to wait.
func (w *window) full() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.fitsLocked(1) || w.mu.room != nil
}

// skipTo moves the position over sequences that are not read, once what is in
// flight is done. stored is of the message at the position; zero: not known.
func (w *window) skipTo(pos uint64, stored time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.entries = append(w.mu.entries, entry{seq: pos, at: stored, done: true, skip: true})
	w.advanceLocked()
}

// restart sets the position to where reading begins: the stream is another one
// now. Messages in flight no longer move it, as their sequences are of the old one.
func (w *window) restart(pos uint64, stored time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.pos, w.mu.posTime, w.mu.stored = pos, time.Time{}, stored
	for i := w.mu.head; i < len(w.mu.entries); i++ {
		w.mu.entries[i].seq = 0
	}
	w.forgetRepliesLocked()
}

// forgetReplies drops the acknowledgements that belong to a consumer that is
// no more.
func (w *window) forgetReplies() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgetRepliesLocked()
}

func (w *window) forgetRepliesLocked() {
	w.mu.reply = ""
	for i := w.mu.head; i < len(w.mu.entries); i++ {
		w.mu.entries[i].reply = ""
	}
}

// takeReply returns where to acknowledge everything up to the position; empty
// if that is done.
func (w *window) takeReply() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.mu.reply
	w.mu.reply = ""
	return r
}

// progress is a window's state.
type progress struct {
	pos      uint64    // highest sequence up to which everything is done
	stored   time.Time // when the stream stored the message at pos; zero: not known
	oldest   time.Time // when the stream stored what is next to be applied, or was last applied
	inFlight int
	bytes    int
}

func (w *window) progress() progress {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := progress{pos: w.mu.pos, stored: w.mu.stored, oldest: w.mu.posTime, inFlight: len(w.mu.entries) - w.mu.head, bytes: w.mu.bytes}
	if p.inFlight > 0 {
		p.oldest = w.mu.entries[w.mu.head].at
	}
	return p
}
