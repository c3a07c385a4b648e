package quota

import (
	"math"
	"math/bits"
	"time"
)

// Limit is what a tenant may use in a time. 0 requests or tokens are without limit.
type Limit struct {
	Requests, Tokens int64
	Per              time.Duration

	some, of int // the part of it that holds here; 0 of 0 is all
}

// Part returns so many of so many equal parts of the limit. Less than one request is one
// in a longer time.
func (l Limit) Part(some, of int) Limit {
	l.some, l.of = some, of
	return l
}

// flow returns in which time as much as the whole limit flows back.
func (l *Limit) flow() time.Duration {
	if l.some >= l.of {
		return l.Per
	}
	return l.Per * time.Duration(l.of) / time.Duration(l.some)
}

// Set reports whether there is a limit.
func (l *Limit) Set() bool { return l.Requests > 0 || l.Tokens > 0 }

// Level is how one limit stands.
type Level struct {
	Limit     int64 // 0: there is none
	Remaining int64
	Reset     time.Duration // until all of it is there again
}

// What a request was refused for.
const (
	ByRequests = "requests"
	ByTokens   = "tokens"
)

// Decision says whether a request may go on.
type Decision struct {
	Requests, Tokens Level
	Refused          string        // "", ByRequests or ByTokens
	Wait             time.Duration // until it may, if nobody else takes anything
}

// Account is what a tenant has taken. The zero value has taken nothing.
type Account struct{ requests, tokens bucket }

// Take takes a request with so many tokens, if the limits allow it.
func (a *Account) Take(now time.Time, l Limit, tokens int64) (d Decision) {
	if w := a.requests.wait(now, &l, l.Requests, 1); w > d.Wait {
		d.Refused, d.Wait = ByRequests, w
	}
	if w := a.tokens.wait(now, &l, l.Tokens, tokens); w > d.Wait {
		d.Refused, d.Wait = ByTokens, w
	}
	if d.Refused == "" {
		a.requests.add(now, &l, l.Requests, 1)
		a.tokens.add(now, &l, l.Tokens, tokens)
	}
	d.Requests, d.Tokens = a.requests.level(now, &l, l.Requests), a.tokens.level(now, &l, l.Tokens)
	return d
}

// Settle takes the tokens that a request has used beyond those that Take took for it;
// below 0 gives some back.
func (a *Account) Settle(now time.Time, l Limit, tokens int64) {
	a.tokens.add(now, &l, l.Tokens, tokens)
}

// idle reports whether all has flowed back.
func (a *Account) idle(now time.Time) bool {
	return !a.requests.full.After(now) && !a.tokens.full.After(now)
}

// bucket is one limit's state (the generic cell rate algorithm, ITU-T I.371): when all
// that was taken will have flowed back. A changed limit needs no other state, and what was
// taken elsewhere is the time that it takes to flow back.
type bucket struct {
	full time.Time
	took time.Duration // here, and not told to others yet; below 0: given back
}

// owed returns how long it takes until then.
func (b *bucket) owed(now time.Time) time.Duration { return max(b.full.Sub(now), 0) }

// wait returns how long n must wait; 0 if it may pass. More than the limit passes when
// all of it is there.
func (b *bucket) wait(now time.Time, l *Limit, limit, n int64) time.Duration {
	if limit <= 0 {
		return 0
	}
	return max(b.owed(now)+min(share(n, limit, l.flow()), l.Per)-l.Per, 0)
}

// add takes n, or gives them back.
func (b *bucket) add(now time.Time, l *Limit, limit, n int64) {
	if limit <= 0 {
		return
	}
	d := share(n, limit, l.flow())
	if n < 0 {
		d = -share(-n, limit, l.flow())
	}
	b.move(now, d)
	b.took = clamp(b.took + d)
}

// move takes what flows back in a time, or gives it back.
func (b *bucket) move(now time.Time, d time.Duration) {
	if d < 0 {
		b.full = b.full.Add(d)
		return
	}
	b.full = now.Add(min(b.owed(now), maxOwed) + d)
}

// atLeast has it owe as much as another does who knows all that was taken here.
func (b *bucket) atLeast(now time.Time, owed time.Duration) {
	if full := now.Add(owed); full.After(b.full) {
		b.full = full
	}
}

func (b *bucket) level(now time.Time, l *Limit, limit int64) Level {
	if limit <= 0 {
		return Level{}
	}
	owed := b.owed(now)
	return Level{Limit: limit, Remaining: scale(max(l.Per-owed, 0), limit, l.flow()), Reset: owed}
}

// clamp bounds what one tells another.
func clamp(d time.Duration) time.Duration { return min(max(d, -maxOwed), maxOwed) }

// maxOwed bounds how long a tenant pays for what it took.
const maxOwed = 24 * time.Hour

// share returns how long n of the limit take to flow back, at most maxOwed.
func share(n, limit int64, per time.Duration) time.Duration {
	hi, lo := bits.Mul64(uint64(n), uint64(per))
	if hi >= uint64(limit) {
		return maxOwed
	}
	q, _ := bits.Div64(hi, lo, uint64(limit))
	return time.Duration(min(q, uint64(maxOwed)))
}

// scale is the opposite: how many of the limit flow back in a time up to per.
func scale(d time.Duration, limit int64, per time.Duration) int64 {
	hi, lo := bits.Mul64(uint64(d), uint64(limit))
	if per <= 0 || hi >= uint64(per) {
		return limit
	}
	q, _ := bits.Div64(hi, lo, uint64(per))
	return int64(min(q, math.MaxInt64))
}
