package ingest

import (
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// work is one message on its way through a partition and the index. It is used
// again once everything of it is done, with its decoder's memory.
type work struct {
	partition *partition
	source    *source // the stream that it is of; nil: it is in no window
	number    uint64  // in that one's window
	live      bool    // it came without a stream: in order, and not again
	worker    uint64  // from the subject
	data      []byte
	stored    time.Time // when the stream stored it; zero: not known
	stream    time.Time // when that stream was made
	seq       uint64    // in the stream; 0: it came otherwise

	dec event.Decoder
	// left counts the parts that are not done, and one more while the partition is
	// still cutting them.
	left atomic.Int32
}

// begin prepares w for a message that is of no stream, until source and number say
// otherwise.
func (w *work) begin(worker uint64, data []byte) {
	w.source, w.worker, w.data, w.live, w.stored, w.stream, w.seq = nil, worker, data, false, time.Time{}, time.Time{}, 0
	w.left.Store(1)
}

// seqOf returns the message's sequence in the stream that was made then; 0: it is of
// another one, whose numbers mean nothing any more.
func (w *work) seqOf(created time.Time) uint64 {
	if !w.stream.Equal(created) {
		return 0
	}
	return w.seq
}

// release gives one part back; with the last the message is complete.
func (w *work) release() {
	if w.left.Add(-1) == 0 {
		l := w.partition
		if w.source != nil {
			w.source.window.complete(w.number)
		}
		w.data = nil
		l.works.Put(w)
	}
}

// part is the events that a message has for one rank.
type part struct {
	work  *work
	rank  *rank
	batch event.Batch
	era   uint64 // of the rank when it was handed to the index
}

// applied is called by the index when all of the part is applied.
func (p *part) applied(out core.Outcome) {
	l := p.work.partition
	l.m.applied(out)
	now := time.Now()
	if p.batch.Published != 0 {
		l.m.visible.Update(max(0, now.Sub(time.Unix(0, p.batch.Published)).Seconds()))
	}
	if p.rank.applied(out, p.era, now) && (out.UnknownParent > 0 || out.Refused > 0) {
		l.notify(note{p.rank, p.era, out.UnknownParent > 0, out.Refused > 0})
	}
	p.work.release()
	l.applying.Done()
}

// splitByRank divides a batch by rank, in the order in which the ranks appear. A batch
// of one rank, the usual case, is not copied.
func splitByRank(b *event.Batch, each func(dpRank uint32, b event.Batch)) {
	one := true
	for i := range b.Events {
		if b.Events[i].DPRank != b.Events[0].DPRank {
			one = false
			break
		}
	}
	if one {
		each(b.Events[0].DPRank, *b)
		return
	}
	var ranks []uint32
	byRank := make(map[uint32][]event.Event)
	for i := range b.Events {
		r := b.Events[i].DPRank
		if byRank[r] == nil {
			ranks = append(ranks, r)
		}
		byRank[r] = append(byRank[r], b.Events[i])
	}
	for _, r := range ranks {
		c := *b
		c.Events = byRank[r]
		each(r, c)
	}
}
