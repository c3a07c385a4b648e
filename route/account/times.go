package account

import (
	"math"
	"time"
)

// Times counts times, for quantiles that are off by a tenth at most.
type Times [timesBuckets]uint32

const (
	timesBuckets = 160
	timesPer2    = 8    // buckets for each doubling
	timesLeast   = 0.25 // ms: the first bucket's end
)

// Add counts a time.
func (t *Times) Add(d time.Duration) {
	ms := float64(d) / float64(time.Millisecond)
	i := 0
	if ms > timesLeast {
		i = min(int(math.Log2(ms/timesLeast)*timesPer2)+1, timesBuckets-1)
	}
	t[i]++
}

// AddSince adds what was counted between two states of one Times.
func (t *Times) AddSince(to, from *Times) {
	for i := range t {
		t[i] += to[i] - from[i]
	}
}

// Quantile returns the time, in ms, that the part q of all does not exceed; false if none
// was counted.
func (t *Times) Quantile(q float64) (ms float64, ok bool) {
	n := uint64(0)
	for _, c := range t {
		n += uint64(c)
	}
	if n == 0 {
		return 0, false
	}
	rank := uint64(math.Ceil(q * float64(n)))
	for i, c := range t {
		if rank <= uint64(c) {
			return timesLeast * math.Exp2((float64(i)-0.5)/timesPer2), true
		}
		rank -= uint64(c)
	}
	return timesLeast * math.Exp2(timesBuckets/timesPer2), true
}
