package load

import "time"

// Engines compute prompts in the order in which requests come. So the bookings
// of a slot that have no first token stand in a list by when they were made.

// Turn returns how many prompt tokens the request is to have computed that has
// waited longest of the slot's, and when its turn came: when it was booked, or
// the one before it had its first token, as far as this table was told.
func (t *Table) Turn(s uint32) (tokens int, since time.Time) {
	if int(s) >= len(t.slots) || t.slots[s].head == nil { // since is then of the last one
		return 0, time.Time{}
	}
	return t.slots[s].headTokens, t.slots[s].since
}

// Behind returns of a slot below Slots what Load and Turn say, as far as most choices need it of most ranks: its requests, those
// of them without a first token, the tokens of their prompts, and those yet to be computed behind the prompt whose turn it is.
func (t *Table) Behind(s uint32) (requests, prefilling, prompts, behind int) {
	sl := &t.slots[s]
	return sl.requests, sl.prefilling, sl.prompts, sl.prefill - sl.headTokens
}

// queue puts a booking after those that wait for their first token.
func (t *Table) queue(b *booking, now time.Time) {
	t.latest = later(t.latest, now)
	sl := &t.slots[b.slot]
	b.before = sl.tail
	if sl.tail != nil {
		sl.tail.after = b
	} else {
		sl.head, sl.headTokens, sl.since = b, b.newTokens, now
	}
	sl.tail = b
}

// unqueue takes a booking out of those; after the head it is the next one's
// turn.
func (t *Table) unqueue(b *booking) {
	sl := &t.slots[b.slot]
	if b.before != nil {
		b.before.after = b.after
	} else {
		sl.head, sl.headTokens, sl.since = b.after, 0, t.latest
		if b.after != nil {
			sl.headTokens = b.after.newTokens
		}
	}
	if b.after != nil {
		b.after.before = b.before
	} else {
		sl.tail = b.before
	}
	b.before, b.after = nil, nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
