package fairqueue

import (
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/route"
)

// Config holds the settings of a Queue. Limit and Age are above 0.
type Config struct {
	Limit int           // of those that wait, and those that were let out and may be back
	Age   time.Duration // see the package's doc
	// Tries is how many in a row of those that may use the same workers may be put aside with Pass; 0 is none.
	Tries int
}

const (
	// Tries is how many in a row may be asked whether what has become free suits them, those
	// before them being better served a little later. In the lab more of them, up to 32,
	// bring no first token sooner.
	Tries = 4
	// narrowTries is how many in a row of those that may use some workers only, of all kinds.
	narrowTries = 64
)

// Shortest returns the key of a request that is to compute so many tokens of its prompt, where
// the shortest go first.
func Shortest(arrival time.Time, tokens int) time.Time {
	return arrival.Add(time.Duration(tokens) * route.PerToken)
}

// Item is one request that waits. Its fields are the caller's to set, before Push.
type Item struct {
	Tenant   string
	Weight   float64   // of the tenant; above 0
	Priority int       // of the tenant; higher goes first
	Key      time.Time // order among the tenant's own: earlier goes first
	Cost     float64   // what it uses; above 0
	Only     string    // the workers that it may use, if not all: that it finds no room says nothing of others'
	Value    any       // the caller's

	flow    *flow
	number  uint64 // in the order of Push
	charged float64
	since   time.Time // of its flow, before it was let out
	at      [2]int    // in the flow's heaps; -1 when out of them
}

func (i *Item) before(o *Item) bool {
	if !i.Key.Equal(o.Key) {
		return i.Key.Before(o.Key)
	}
	return i.number < o.number
}

// flow is one tenant.
type flow struct {
	tenant   string
	weight   float64
	priority int
	start    float64   // virtual time at which its next item begins
	since    time.Time // it waits without being served
	out      int       // of its items, let out and neither Done nor Return yet
	first    heap      // by order
	last     heap      // by the opposite
}

// Queue is those that wait.
type Queue struct {
	cfg     Config
	flows   map[string]*flow
	waiting int
	out     int            // let out, and neither Done nor Return yet
	aside   []*Item        // of these, in the order in which they were let out
	tried   map[string]int // of those aside, who have tried, by their Only
	narrow  int            // of those, who have one
	virtual float64        // start of what was let out last, and has not come back
	number  uint64
	sweepAt int // tenants known
}

// New returns an empty Queue.
func New(cfg Config) *Queue {
	return &Queue{cfg: cfg, flows: make(map[string]*flow), tried: make(map[string]int)}
}

// Len returns how many wait.
func (q *Queue) Len() int { return q.waiting }

// Idle reports whether nobody waits or may be back.
func (q *Queue) Idle() bool { return q.waiting+q.out == 0 }

// Push adds a request at a time. It returns the one that has to go for it, which may
// be the same; nil if there is room.
func (q *Queue) Push(now time.Time, i *Item) (dropped *Item) {
	q.number++
	i.number = q.number
	q.insert(now, i)
	if q.waiting+q.out <= q.cfg.Limit {
		return nil
	}
	most := i.flow
	for _, f := range q.flows {
		if float64(len(f.first.items))/f.weight > float64(len(most.first.items))/most.weight {
			most = f
		}
	}
	dropped = most.last.items[0]
	q.Remove(dropped)
	return dropped
}

func (q *Queue) insert(now time.Time, i *Item) {
	f := q.flows[i.Tenant]
	if f == nil {
		q.sweep()
		f = &flow{tenant: i.Tenant, start: q.virtual, last: heap{slot: 1}}
		q.flows[i.Tenant] = f
	}
	if len(f.first.items) == 0 {
		f.start, f.since = max(f.start, q.virtual), now
	}
	f.weight, f.priority = i.Weight, i.Priority // as they are set now
	i.flow = f
	f.first.push(i)
	f.last.push(i)
	q.waiting++
}

// sweep forgets tenants of which nothing is known but their names, and what they used
// lately of those that are too many; now and then.
func (q *Queue) sweep() {
	if len(q.flows) < q.sweepAt {
		return
	}
	for name, f := range q.flows {
		if len(f.first.items)+f.out == 0 && (f.start <= q.virtual || len(q.flows) > 2*q.cfg.Limit+minSweep) {
			delete(q.flows, name)
		}
	}
	q.sweepAt = 2*len(q.flows) + minSweep
}

// minSweep is how many tenants are known before any is forgotten.
const minSweep = 64

// Pop lets the next one out; nil if nobody waits. Then Return, Pass or Done must be called
// with it. Of those that may use some workers only, none is let out for whom Tries others
// were put aside: many that wait for one worker would keep those behind them from the rest.
func (q *Queue) Pop(now time.Time) *Item {
	for i := q.take(now); i != nil; i = q.take(now) {
		if i.Only == "" || q.tried[i.Only] == 0 || q.tried[i.Only] < q.cfg.Tries {
			return i
		}
		q.aside = append(q.aside, i)
	}
	q.Settle(now) // there is nobody whose turn would end that
	return nil
}

func (q *Queue) take(now time.Time) *Item {
	f := q.next(now)
	if f == nil {
		return nil
	}
	i := f.first.items[0]
	q.Remove(i)
	q.out++
	f.out++
	i.charged, i.since = i.Cost/f.weight, f.since
	q.virtual = max(q.virtual, f.start)
	f.start = max(f.start, q.virtual) + i.charged
	f.since = now
	return i
}

// next returns the tenant whose turn it is.
func (q *Queue) next(now time.Time) (best *flow) {
	top := 0
	for _, f := range q.flows {
		if len(f.first.items) > 0 && (best == nil || f.priority > top) {
			best, top = f, f.priority
		}
	}
	if best == nil {
		return nil
	}
	at := top
	best = nil
	for _, f := range q.flows {
		if len(f.first.items) == 0 {
			continue
		}
		p := min(top, f.priority+int(max(0, min(now.Sub(f.since)/q.cfg.Age, 1<<20))))
		switch {
		case best == nil, p > at, p == at && f.before(best):
			best, at = f, p
		}
	}
	return best
}

// before orders tenants of one priority.
func (f *flow) before(o *flow) bool {
	if f.start != o.start {
		return f.start < o.start
	}
	return f.first.items[0].before(o.first.items[0])
}

// Return puts one that was let out back into its place: it found no room.
func (q *Queue) Return(now time.Time, i *Item) {
	f := i.flow
	q.Done(i)
	f.start -= i.charged
	q.virtual = min(q.virtual, f.start) // else the others' being let out meanwhile costs it its place
	q.insert(now, i)
	f.since = i.since
}

// Pass puts one aside that was let out and found no room that suits it, as another may suit
// the next one. It reports whether to let that out; else nobody is aside any more.
func (q *Queue) Pass(now time.Time, i *Item) bool {
	q.aside = append(q.aside, i)
	q.tried[i.Only]++
	if i.Only != "" {
		q.narrow++
	}
	if q.tried[""] < q.cfg.Tries && q.narrow < narrowTries && q.waiting > 0 {
		return true
	}
	q.Settle(now)
	return false
}

// Settle puts those that are aside back into their places, the last one first, as each took
// its turn after those before it.
func (q *Queue) Settle(now time.Time) {
	for n := len(q.aside) - 1; n >= 0; n-- {
		q.Return(now, q.aside[n])
	}
	clear(q.aside)
	q.aside, q.narrow = q.aside[:0], 0
	clear(q.tried)
}

// Done says that one that was let out does not come back.
func (q *Queue) Done(i *Item) {
	q.out--
	i.flow.out--
}

// Remove takes one out that waits or is aside. It reports whether it did.
func (q *Queue) Remove(i *Item) bool {
	if n := slices.Index(q.aside, i); n >= 0 {
		q.aside = slices.Delete(q.aside, n, n+1)
		q.Done(i)
		return true
	}
	if i.flow == nil || i.at[0] < 0 {
		return false
	}
	i.flow.first.remove(i)
	i.flow.last.remove(i)
	q.waiting--
	return true
}
