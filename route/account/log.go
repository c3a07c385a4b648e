package account

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Config holds the settings of a Log.
type Config struct {
	Keep   int   // how many of the last sampled decisions are kept; 0: none at all are
	Memory int64 // bytes that all kept ones take at most
	Rows   int   // of tables that are written a second
	// Run begins all ids: it should differ between processes, and between runs of one.
	Run string
}

// DefaultConfig returns the defaults but for Run.
func DefaultConfig() Config { return Config{Keep: 1000, Memory: 32 << 20, Rows: 1000} }

// Log keeps decisions: the last that were sampled, and of each of the last 60 minutes that had
// any the slowest and the worst predicted: after a quiet night those of the evening are there. A nil Log keeps nothing. Its methods are safe for
// concurrent use.
type Log struct {
	cfg    Config
	serial atomic.Uint64
	next   atomic.Int64 // when the next table may be written, in Unix nanoseconds

	// What a request must exceed to be of interest in the present minute: read without
	// the lock, as most do not. Both are ms, as bits.
	minute       atomic.Int64
	slowest, off atomic.Uint64
	mu           sync.Mutex
	last         []*Decision // oldest first, from head on
	head         int
	minutes      []minute // by time
	lastBytes    int64
	minutesBytes int64
	sampled      uint64
}

// minute is what is kept of one.
type minute struct {
	at             int64 // Unix minutes
	slowest, worst *Decision
}

// maxMinutes bounds the minutes that are kept.
const maxMinutes = 60

// New returns an empty Log.
func New(cfg Config) *Log {
	l := &Log{cfg: cfg}
	l.minute.Store(math.MinInt64)
	return l
}

// Sample reports whether the table of a choice among so many ranks is to be written. So
// many rows a second are, on average, and a second's at once.
func (l *Log) Sample(now time.Time, rows int) bool {
	if l == nil || l.cfg.Keep <= 0 || l.cfg.Rows <= 0 {
		return false
	}
	at := now.UnixNano()
	for {
		next := l.next.Load()
		if next > at {
			return false
		}
		if l.next.CompareAndSwap(next, max(next, at-int64(time.Second))+l.takes(rows)) {
			return true
		}
	}
}

// Unsample takes back a Sample that was granted, as nothing was chosen.
func (l *Log) Unsample(rows int) { l.next.Add(-l.takes(rows)) }

// takes is for how long, in nanoseconds, no other table is written after one of so many rows.
func (l *Log) takes(rows int) int64 {
	return int64(max(rows, 1)) * int64(time.Second) / int64(l.cfg.Rows)
}

// ID returns an id that no other decision has; "" of a nil Log.
func (l *Log) ID() string {
	if l == nil {
		return ""
	}
	return l.cfg.Run + "-" + strconv.FormatUint(l.serial.Add(1), 10)
}

// Notable reports whether a request whose first token came after first, with predicted
// before it, both in ms, is the slowest or the worst predicted of the present minute so
// far. judged is false where the prediction is not to be judged.
func (l *Log) Notable(now time.Time, first, predicted float64, judged bool) bool {
	if l == nil || l.cfg.Keep <= 0 {
		return false
	}
	return l.minute.Load() != minuteOf(now) || first > math.Float64frombits(l.slowest.Load()) ||
		judged && math.Abs(first-predicted) > math.Float64frombits(l.off.Load())
}

func minuteOf(t time.Time) int64 { return t.Unix() / 60 }

// Add keeps a decision that is over at the time now, as far as it is one to be kept. It
// is the Log's from then on. sampled says that it is one of the last, judged whether its
// prediction is to be.
func (l *Log) Add(now time.Time, d *Decision, sampled, judged bool) {
	if l == nil || l.cfg.Keep <= 0 {
		return
	}
	if d.ID == "" {
		d.ID = l.ID()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	size := d.bytes()
	if size > l.cfg.Memory/4 {
		d.Ranks = nil // its id has been given: what there was to choose from is not kept, the account of it is
		size = d.bytes()
	}
	if sampled && size <= l.cfg.Memory/2 {
		l.sampled++
		l.last, l.lastBytes = append(l.last, d), l.lastBytes+size
		for len(l.last)-l.head > l.cfg.Keep || l.lastBytes > l.cfg.Memory/2 {
			l.lastBytes -= l.last[l.head].bytes()
			l.last[l.head] = nil
			l.head++
		}
		if l.head > len(l.last)/2 {
			l.last = slices.Delete(l.last, 0, l.head)
			l.head = 0
		}
	}
	if d.First != nil && size <= l.cfg.Memory/4 {
		l.consider(minuteOf(now), d, judged)
	}
}

// consider makes d the slowest or the worst of its minute if it is. l.mu is held.
func (l *Log) consider(at int64, d *Decision, judged bool) {
	n := len(l.minutes)
	if n == 0 || l.minutes[n-1].at < at {
		l.minutes = append(l.minutes, minute{at: at})
		n++
	}
	m := &l.minutes[n-1]
	replace := func(p **Decision) {
		if *p != nil {
			l.minutesBytes -= (*p).bytes()
		}
		*p = d
		l.minutesBytes += d.bytes()
	}
	if m.slowest == nil || *d.First > *m.slowest.First {
		replace(&m.slowest)
		l.slowest.Store(math.Float64bits(*d.First))
	}
	if judged && (m.worst == nil || d.off() > m.worst.off()) {
		replace(&m.worst)
	}
	off := -1.0
	if m.worst != nil {
		off = m.worst.off()
	}
	l.off.Store(math.Float64bits(off))
	l.minute.Store(m.at)
	drop := max(0, len(l.minutes)-maxMinutes)
	for i := range l.minutes[:n-1] {
		if i >= drop && l.minutesBytes <= l.cfg.Memory/2 {
			break
		}
		drop = i + 1
		for _, d := range [...]*Decision{l.minutes[i].slowest, l.minutes[i].worst} {
			if d != nil {
				l.minutesBytes -= d.bytes()
			}
		}
	}
	l.minutes = slices.Delete(l.minutes, 0, drop)
}

// Query says which decisions are asked for. The zero value asks for all.
type Query struct {
	Group     *string
	Models    []string // of one of these
	RequestID string
	ID        string
	Worker    *uint64 // that was chosen
	Kind      Kind
	Limit     int // the newest so many; 0: all
}

func (q *Query) wants(d *Decision, kinds []Kind) bool {
	return (q.Group == nil || *q.Group == d.Group) && (q.Models == nil || slices.Contains(q.Models, d.Model)) && (q.ID == "" || q.ID == d.ID) &&
		(q.RequestID == "" || q.RequestID == d.RequestID) && (q.Worker == nil || *q.Worker == d.Worker) && (q.Kind == "" || slices.Contains(kinds, q.Kind))
}

// Find returns the decisions that are asked for, newest first. They are not to be changed.
func (l *Log) Find(q Query) []*Decision {
	if l == nil {
		return nil
	}
	kinds := map[*Decision][]Kind{}
	l.mu.Lock()
	for _, d := range l.last[l.head:] {
		kinds[d] = append(kinds[d], Last)
	}
	for _, m := range l.minutes {
		kinds[m.slowest] = append(kinds[m.slowest], Slowest)
		kinds[m.worst] = append(kinds[m.worst], Worst)
	}
	l.mu.Unlock()
	delete(kinds, nil)
	var found []*Decision
	for d, why := range kinds {
		if q.wants(d, why) {
			of := *d // who is kept why changes, and what is in the Log does not
			of.Kept = why
			found = append(found, &of)
		}
	}
	slices.SortFunc(found, func(a, b *Decision) int {
		return cmp.Or(b.Time.Compare(a.Time), cmp.Compare(len(b.ID), len(a.ID)), strings.Compare(b.ID, a.ID))
	})
	if q.Limit > 0 && len(found) > q.Limit {
		found = found[:q.Limit]
	}
	return found
}

// After returns the decisions that were sampled after the n-th, the newest so many, oldest
// first, and how many were sampled in all.
func (l *Log) After(n uint64, most int) (list []*Decision, sampled uint64) {
	if l == nil {
		return nil, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sampled > n {
		list = slices.Clone(l.last[l.head:][max(0, len(l.last)-l.head-int(min(l.sampled-n, uint64(most)))):])
	}
	return list, l.sampled
}

// Stats is what a Log keeps.
type Stats struct {
	Sampled uint64 // decisions since it was made
	Kept    int    // now; one that is kept for two reasons counts twice
	Bytes   int64
}

// Stats returns what is kept.
func (l *Log) Stats() (s Stats) {
	if l == nil {
		return s
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Sampled, s.Kept, s.Bytes = l.sampled, len(l.last)-l.head, l.lastBytes+l.minutesBytes
	for _, m := range l.minutes {
		for _, d := range [...]*Decision{m.slowest, m.worst} {
			if d != nil {
				s.Kept++
			}
		}
	}
	return s
}
