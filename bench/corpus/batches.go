package corpus

import "github.com/kvatlas/kvatlas/event"

// Batches groups the events as publishers send them: one batch holds up to
// size consecutive events of one worker. Events are looked at window at a
// time, and every batch ends at the latest where its window does, so that an
// event moves before events of other workers by less than window, as it does
// between publishers that wait a moment to fill a message. The order of one
// worker's events is kept. A size of 1 keeps the order of all events.
//
// Batches leave a window in the order in which they were begun.
func (c *Corpus) Batches(space event.Space, size, window int, countCopies bool) []*event.Batch {
	size, window = max(size, 1), max(window, 1)
	var out []*event.Batch
	events := make([]event.Event, 0, len(c.Events)) // all batches' events, one array
	for start := 0; start < len(c.Events); start += window {
		part := c.Events[start:min(start+window, len(c.Events))]
		// First the batches and how many events each gets, then the events:
		// a batch's slice of the array is known only once all are counted.
		of := make([]int, len(part)) // the batch of each event, from first
		first := len(out)
		var counts []int
		open := map[uint64]int{} // worker → its batch that still has room
		for i := range part {
			w := part[i].Worker
			b, ok := open[w]
			if !ok || counts[b] == size {
				b = len(counts)
				open[w] = b
				counts = append(counts, 0)
				out = append(out, &event.Batch{Space: space, Worker: w, Incarnation: 1, CountCopies: countCopies})
			}
			counts[b]++
			of[i] = b
		}
		for b, n := range counts {
			at := len(events)
			events = events[:at+n]
			out[first+b].Events = events[at : at : at+n]
		}
		for i := range part {
			b := out[first+of[i]]
			b.Events = append(b.Events, part[i].Event)
		}
	}
	return out
}
