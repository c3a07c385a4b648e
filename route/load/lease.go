package load

import (
	"time"

	"github.com/kvatlas/kvatlas/shard"
)

// Leased bookings stand in a list by the time of their last progress, so that
// the first to expire is always at its head.

func (t *Table) append(b *booking) {
	b.prev, b.next = t.last, nil
	if t.last != nil {
		t.last.next = b
	} else {
		t.first = b
	}
	t.last = b
}

func (t *Table) unlist(b *booking) {
	if b.prev != nil {
		b.prev.next = b.next
	} else {
		t.first = b.next
	}
	if b.next != nil {
		b.next.prev = b.prev
	} else {
		t.last = b.prev
	}
	b.prev, b.next = nil, nil
}

// renew records progress of a request that changes no count.
func (t *Table) renew(b *booking, now time.Time) {
	if !b.leased || now.Before(b.progress) {
		return
	}
	b.progress = now
	if t.last != b {
		t.unlist(b)
		t.append(b)
	}
}

// Expire ends the leased bookings without progress for longer than the lease
// and calls gone for each. A lease of 0 or less never ends. With none to end
// it looks at one booking only.
func (t *Table) Expire(now time.Time, lease time.Duration, gone func(Key)) {
	for lease > 0 && t.first != nil && now.Sub(t.first.progress) > lease {
		b := t.first
		t.end(b)
		t.release(b.slot)
		gone(b.key)
	}
}

// Each calls f for every live booking of an owner with what Add needs to book
// it again, in the order in which they were made, until f returns false. The request's Blocks live until f returns.
func (t *Table) Each(owner uint64, f func(k Key, rank shard.RankID, r Request) bool) {
	var chain []uint64
	for _, b := range t.bookings(func(b *booking) bool { return b.key.Owner == owner }) {
		chain = t.tree.Chain(chain[:0], b.end)
		r := Request{
			Blocks: chain, Private: b.private,
			PromptTokens: b.prompt, NewTokens: b.newTokens, ExpectedOutput: b.expected,
			Generated: b.generated, Decay: b.decay, Prefilled: !b.prefilling, Leased: b.leased,
		}
		if !f(b.key, t.slots[b.slot].rank, r) {
			return
		}
	}
}
