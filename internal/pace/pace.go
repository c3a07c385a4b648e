package pace

import "time"

// Pace says when what was in vain may be tried again. The zero value is: now.
type Pace struct {
	wait  time.Duration // before the next try, but for chance; 0: the last was not in vain
	from  time.Time     // not before
	tries uint64        // waits so far: each has its own chance
}

// Ready reports whether it is time for a try.
func (p *Pace) Ready(now time.Time) bool { return !now.Before(p.from) }

// Next returns when it is; the zero time if that was always so.
func (p *Pace) Next() time.Time { return p.from }

// Progress says that a try was not in vain.
func (p *Pace) Progress() { p.wait, p.from = 0, time.Time{} }

// Later says that a try that began at begun was in vain, and returns how long to
// wait for the next: twice as long as before it, from least up to most, less a
// part of up to a half that the seed tells, so that what failed together does not
// come back together. After a pause longer than most it begins with least again.
func (p *Pace) Later(begun, now time.Time, least, most time.Duration, seed uint64) time.Duration {
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

// Quota bounds how often something is done: so many at once, and after that as
// they come free again, evenly. The zero value is a full one.
type Quota struct {
	even time.Time // when an even sequence of what was done would go on
}

// Take takes one of most that come free within span each. If there is
// none, it returns how long until there is.
func (q *Quota) Take(now time.Time, most int, span time.Duration) time.Duration {
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

// IsFull reports whether the quota is as if it had never been used.
func (q *Quota) IsFull(now time.Time) bool { return q.even.Before(now) }
