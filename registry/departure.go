package registry

import (
	"slices"
	"time"
)

// Departure says when a worker, or one of its ranks, left.
type Departure struct {
	// At is when that was stored. It tells the departures of a rank from each other.
	At time.Time
	// Seq is the last message that the stream of the worker's space had by then,
	// and Created when that stream was made, zero if there was none: what the worker
	// published up to there is void, and what follows is from one that is back.
	Seq     uint64
	Created time.Time
	// Silent says that nobody told where the stream was: nothing was heard of the
	// worker any more, or nothing of its stream. Who reads that has to look where it
	// ends now, and any sign of life after that is from one that is back.
	Silent bool
}

// moment is a Departure in a value of the bucket.
type moment struct {
	At     time.Time `json:"at"`
	Stream time.Time `json:"stream,omitzero"`
	Seq    uint64    `json:"seq,omitempty,string"`
	Silent bool      `json:"silent,omitempty"` // the server did not say where the stream was
}

func (o moment) departure() Departure {
	return Departure{At: o.At, Seq: o.Seq, Created: o.Stream, Silent: o.Silent}
}

// formerRanks are ranks of a worker that are gone while it stays.
type formerRanks struct {
	Ranks []uint32 `json:"dp_ranks"`
	moment
}

// maxFormer bounds the departures of ranks that a worker's record tells of, and
// maxRanks their ranks.
const maxFormer = 128

// without returns the list without the ranks, and without the oldest of it that
// are beyond its bounds.
func without(list []formerRanks, ranks []uint32) []formerRanks {
	var rest []formerRanks
	room := maxRanks
	for _, f := range slices.Backward(list) {
		f.Ranks = slices.DeleteFunc(slices.Clone(f.Ranks), func(r uint32) bool { return slices.Contains(ranks, r) })
		f.Ranks = f.Ranks[:min(len(f.Ranks), room)]
		room -= len(f.Ranks)
		ranks = append(slices.Clip(ranks), f.Ranks...) // the newest departure of a rank counts
		if len(f.Ranks) > 0 && len(rest) < maxFormer {
			rest = append(rest, f)
		}
	}
	slices.Reverse(rest)
	return rest
}

// tombstone returns what takes the place of a registration: since when its
// ranks are gone. It keeps no more of the worker than what names it.
func (r *record) tombstone(at moment) *record {
	return &record{
		Version: recordVersion, Gone: &at, Former: r.Former,
		Worker: Worker{
			ID: r.ID, Name: r.Name, Model: r.Model, BlockSize: r.BlockSize, Group: r.Group, Ranks: r.Ranks,
			Transport: r.Transport, Role: r.Role,
		},
	}
}

// departed are ranks of a member that left, and when.
type departed struct {
	ranks []uint32
	Departure
}

// departures returns what a value that was stored at the time says of ranks
// that left.
func (r *record) departures(stored time.Time) []departed {
	var list []departed
	for _, f := range r.Former {
		list = append(list, departed{f.Ranks, f.departure()})
	}
	if r.Gone != nil {
		d := r.Gone.departure()
		d.At = stored
		list = append(list, departed{r.Ranks, d})
	}
	return list
}

// departs notes what a key of the bucket says of the member's ranks that left,
// in the place of what it said before, and returns the ranks of which that is
// news.
func (m *member) departs(key string, list []departed) (news []uint32) {
	known := m.departed[key]
	for _, d := range list {
		if !slices.ContainsFunc(known, func(k departed) bool { return k.At.Equal(d.At) && slices.Equal(k.ranks, d.ranks) }) {
			news = append(news, d.ranks...)
		}
	}
	if delete(m.departed, key); len(list) > 0 {
		if m.departed == nil {
			m.departed = make(map[string][]departed)
		}
		m.departed[key] = list
	}
	return news
}

// left returns when the rank last left, if it is not there: it alone where the
// worker is there, else any of it.
func (l *ledger) left(k Key, rank uint32) (d Departure, ok bool) {
	m := l.members[k]
	present := m != nil && (m.state == Live || m.state == Suspect)
	if present && slices.Contains(m.worker.Ranks, rank) {
		return d, false
	}
	later := func(o Departure) {
		if o.At.IsZero() {
			return
		}
		if ok {
			o = d.or(o)
		}
		d, ok = o, true
	}
	if m != nil {
		for _, list := range m.departed {
			// A key tells its departures in their order.
			for _, o := range slices.Backward(list) {
				if !present || slices.Contains(o.ranks, rank) {
					later(o.Departure)
					break
				}
			}
		}
		if !present {
			later(m.left)
		}
	}
	// Keys that somebody deleted before this replica began: what they said is
	// not known.
	for _, key := range []string{leaseKey(k), httpKey(k, rank)} {
		if mk, gone := l.markers[key]; gone && (m == nil || m.departed[key] == nil) {
			later(Departure{At: mk.created, Silent: true})
		}
	}
	return d, ok
}

// or returns the later of two departures, by the stream that tells both: the clocks of
// those who noted them differ. Where the stream does not order them its end is still to be
// looked at, by which both are over. Of one place any will do that is always the same.
func (d Departure) or(o Departure) Departure {
	if o.At.After(d.At) {
		d, o = o, d
	}
	unnoted := func(d *Departure) bool { return d.Silent && d.Created.IsZero() }
	switch {
	case unnoted(&d):
	case unnoted(&o), d.Created.Equal(o.Created) && o.Seq > d.Seq:
		return o
	case !d.Created.Equal(o.Created):
		return Departure{At: d.At, Silent: true}
	}
	return d
}
