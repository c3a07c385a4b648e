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
	if w := a.requests.wait(now, l.Requests, 1, l.Per); w > d.Wait {
		d.Refused, d.Wait = ByRequests, w
	}
	if w := a.tokens.wait(now, l.Tokens, tokens, l.Per); w > d.Wait {
		d.Refused, d.Wait = ByTokens, w
	}
	if d.Refused == "" {
		a.requests.add(now, l.Requests, 1, l.Per)
		a.tokens.add(now, l.Tokens, tokens, l.Per)
	}
	d.Requests, d.Tokens = a.requests.level(now, l.Requests, l.Per), a.tokens.level(now, l.Tokens, l.Per)
	return d
}

// Settle takes the tokens that a request has used beyond those that Take took for it;
// below 0 gives some back.
func (a *Account) Settle(now time.Time, l Limit, tokens int64) {
	a.tokens.add(now, l.Tokens, tokens, l.Per)
}

// idle reports whether all has flowed back.
func (a *Account) idle(now time.Time) bool {
	return !a.requests.full.After(now) && !a.tokens.full.After(now)
}

// bucket is one limit's state (the generic cell rate algorithm, ITU-T I.371): when all
// that was taken will have flowed back. A changed limit needs no other state.
type bucket struct{ full time.Time }

// owed returns how long it takes until then.
func (b *bucket) owed(now time.Time) time.Duration { return max(b.full.Sub(now), 0) }

// wait returns how long n must wait; 0 if it may pass. More than the limit passes when
// all of it is there.
func (b *bucket) wait(now time.Time, limit, n int64, per time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	return max(b.owed(now)+min(share(n, limit, per), per)-per, 0)
}

// add takes n, or gives them back.
func (b *bucket) add(now time.Time, limit, n int64, per time.Duration) {
	switch {
	case limit <= 0:
	case n < 0:
		b.full = b.full.Add(-share(-n, limit, per))
	default:
		b.full = now.Add(min(b.owed(now), maxOwed) + share(n, limit, per))
	}
}

func (b *bucket) level(now time.Time, limit int64, per time.Duration) Level {
	if limit <= 0 {
		return Level{}
	}
	owed := b.owed(now)
	return Level{Limit: limit, Remaining: scale(max(per-owed, 0), limit, per), Reset: owed}
}

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
