package console

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/route/account"
)

// rateOver is the time that rates and ratios are of.
const rateOver = 10 * time.Second

// counters are what a space has counted so far.
type counters struct {
	at     time.Time
	events uint64
	blocks uint64 // stored and removed
	// Of a space that is routed:
	chosen                      uint64
	prompt, reachable, selected uint64 // tokens of requests that are over and were looked up
	reportedPrompt, reported    uint64 // and of those whose engines said what they found
	first                       account.Times
}

// past is the last seconds' counters, oldest first.
type past struct{ list []counters }

// note adds those of a moment and drops what is too old.
func (p *past) note(now time.Time, c counters) {
	c.at = now
	p.list = append(p.list, c)
	drop := 0
	for drop < len(p.list)-2 && now.Sub(p.list[drop+1].at) >= rateOver {
		drop++
	}
	p.list = append(p.list[:0], p.list[drop:]...)
}

// span returns the oldest and the newest counters; false with fewer than two.
func (p *past) span() (from, to *counters, ok bool) {
	n := len(p.list)
	if n < 2 {
		return nil, nil, false
	}
	return &p.list[0], &p.list[n-1], true
}

// rate is how fast one number grows.
type rate struct {
	at     []time.Time
	counts []uint64
}

func (r *rate) note(now time.Time, n uint64) {
	r.at, r.counts = append(r.at, now), append(r.counts, n)
	for len(r.at) > 2 && now.Sub(r.at[1]) >= rateOver {
		r.at, r.counts = r.at[1:], r.counts[1:]
	}
}

// perSecond returns it; nil if it is not known.
func (r *rate) perSecond() *float64 {
	n := len(r.at)
	if n < 2 {
		return nil
	}
	return per(r.counts[n-1]-r.counts[0], r.at[n-1].Sub(r.at[0]))
}

func per(n uint64, d time.Duration) *float64 {
	if d <= 0 {
		return nil
	}
	x := float64(n) / d.Seconds()
	return &x
}

// resident returns the bytes of memory that the process has; 0 if that is unknown.
func resident() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
