package ingest

import (
	"math/bits"
	"time"
)

// This file is what bounds how often publishers are asked, whatever they answer:
// what was in vain is tried again later and later, and no publisher is asked more
// often than at a rate. It is pure: whoever uses it tells the time.

// pace says when what was in vain may be tried again. The zero value is: now.
type pace struct {
	wait  time.Duration // before the next try, but for chance; 0: the last was not in vain
	from  time.Time     // not before
	tries uint64        // waits so far: each has its own chance
}

// ready reports whether it is time for a try.
func (p *pace) ready(now time.Time) bool { return !now.Before(p.from) }

// progress says that a try was not in vain.
func (p *pace) progress() { p.wait, p.from = 0, time.Time{} }

// later says that a try that began at begun was in vain, and returns how long to
// wait for the next: twice as long as before it, from least up to most, less a
// part of up to a half that the seed tells, so that what failed together does not
// come back together. After a pause longer than most it begins with least again.
func (p *pace) later(begun, now time.Time, least, most time.Duration, seed uint64) time.Duration {
	if begun.Sub(p.from) > most {
		p.wait = 0
	}
	p.wait = min(max(2*p.wait, least), most)
	p.tries++
	d := p.wait - time.Duration(float64(p.wait/2)*chance(seed, p.tries))
	p.from = now.Add(d)
	return d
}

// chance returns the n-th of a seed's numbers, each from 0 to below 1 (SplitMix64).
func chance(seed, n uint64) float64 {
	x := seed + n*0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return float64((x^x>>31)>>11) / (1 << 53)
}

// seed returns the rank's seed, by that of the replica.
func (id *RankID) seed(of uint64) uint64 {
	return of ^ bits.RotateLeft64(id.Worker*0x9E3779B97F4A7C15, 32) ^ uint64(id.DPRank)
}

// quota bounds the requests to one publisher: so many at once, and after that as
// they come free again, evenly. The zero value is a full one.
type quota struct {
	even time.Time // when an even sequence of the requests so far would go on
}

// take takes one of most requests that come free within span each. If there is
// none, it returns how long until there is.
func (q *quota) take(now time.Time, most int, span time.Duration) time.Duration {
	every := span / time.Duration(most)
	if q.even.Before(now) {
		q.even = now
	}
	if wait := q.even.Sub(now) - span + every; wait > 0 {
		return wait
	}
	q.even = q.even.Add(every)
	return 0
}
