package recovery

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/groups"
	"github.com/kvatlas/kvatlas/event"
)

// Config holds the settings of a Source. All are needed but Resume, Budget and
// Now.
type Config struct {
	Space       event.Space
	Worker      uint64
	Incarnation uint64
	CountCopies bool
	Ring        int           // events kept for each rank
	RingBytes   int           // bytes of events kept, over all ranks
	KeepDump    time.Duration // after how long unasked a dump is dropped
	Dumps       int           // kept at a time; default 4
	// Resume holds the last id of ranks from before the Source.
	Resume []event.Position
	// Holds calls add for what a rank of Resume holds, as core.Index.Dump and
	// Orphans.Dump give it; nil: that is not known.
	Holds func(dpRank uint32, add func(ev *event.Event, copies []uint32))
	Now   func() time.Time // default time.Now
}

// Source is a worker's local index with a ring of its last events. It is safe
// for concurrent use.
type Source struct {
	cfg Config

	mu struct {
		sync.Mutex
		index *core.Radix
		ranks map[uint32]*indexedRank
		bytes int // of the rings
		dumps []*dump
	}
}

// indexedRank is one dp_rank.
type indexedRank struct {
	holder core.Holder
	last   uint64
	// incomplete: blocks that were held before the Source began are not known.
	incomplete       bool
	streamIncomplete bool // the stream is incomplete
	orphans          Orphans
	groups           *groups.Table // nil: the rank's model has one cache group, as far as is known
	// ring[at], ring[at+1], … are the last events, oldest first; it grows up to
	// Config.Ring.
	ring []event.Event
	at   int
	n    int
}

// dump is one dump that is being given out.
type dump struct {
	number           uint64
	dpRank           uint32
	last             uint64
	incomplete       bool
	streamIncomplete bool
	data             []byte
	part             int // bytes of a part
	used             time.Time
	ended            bool // its last part was given out
}

// NewSource returns an empty Source.
func NewSource(cfg Config) *Source {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Dumps == 0 {
		cfg.Dumps = 4
	}
	s := &Source{cfg: cfg}
	s.mu.index = core.NewRadix(core.Options{})
	s.mu.ranks = make(map[uint32]*indexedRank)
	for _, p := range cfg.Resume {
		r := s.rankLocked(p.DPRank)
		r.last, r.incomplete, r.streamIncomplete = p.ID, p.ID > 0, p.Incomplete
		if cfg.Holds != nil {
			restore := core.Restorer{Index: s.mu.index, Holder: r.holder}
			cfg.Holds(p.DPRank, func(ev *event.Event, copies []uint32) {
				switch {
				case ev.Group > 0:
					r.table().Restore(ev, copies)
				case ev.Incomplete:
					r.orphans.Restore(ev, copies)
				default:
					restore.Add(ev, copies)
				}
			})
			restore.Finish()
			r.incomplete = false
		}
	}
	return s
}

func (s *Source) rankLocked(dpRank uint32) *indexedRank {
	r := s.mu.ranks[dpRank]
	if r == nil {
		r = &indexedRank{holder: core.Holder(len(s.mu.ranks))}
		s.mu.ranks[dpRank] = r
	}
	return r
}

// Apply notes what happened, whether or not anybody hears of it: ev has the id
// after the rank's last. The slices are copied.
func (s *Source) Apply(ev event.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rankLocked(ev.DPRank)
	switch {
	case ev.Group > 0:
		r.table().Apply(&ev, s.cfg.CountCopies)
		r.last, r.streamIncomplete = ev.ID, ev.Incomplete
		s.keepLocked(r, ev)
		return
	case ev.Kind == event.Cleared && r.groups != nil:
		r.groups.Apply(&ev, s.cfg.CountCopies)
	}
	switch ev.Kind {
	case event.Stored:
		s.storeLocked(r, &ev)
	case event.Removed:
		s.mu.index.Remove(r.holder, &ev, s.cfg.CountCopies)
		if r.orphans.Len() > 0 {
			for _, hash := range ev.Engine {
				r.orphans.Remove(hash, ev.Tier, s.cfg.CountCopies)
			}
		}
	case event.Cleared:
		s.mu.index.Clear(r.holder, ev.Tier, ev.AllTiers)
		r.orphans.Clear(ev.Tier, ev.AllTiers)
		r.incomplete = r.incomplete && !ev.AllTiers
	}
	r.last, r.streamIncomplete = ev.ID, ev.Incomplete
	s.keepLocked(r, ev)
}

// table returns what the rank's cache groups hold. Places of blocks are of no use here.
func (r *indexedRank) table() *groups.Table {
	if r.groups == nil {
		r.groups = groups.NewTable()
	}
	return r.groups
}

// storeLocked stores what has a known place in the index. The rest of an
// incomplete stream is an orphan.
func (s *Source) storeLocked(r *indexedRank, ev *event.Event) {
	out := s.mu.index.Store(r.holder, ev, s.cfg.CountCopies)
	switch {
	case out.UnknownParent > 0 && ev.Incomplete:
		r.orphans.Store(ev, s.cfg.CountCopies)
	case r.orphans.Len() == 0:
	case len(ev.Local) == 0 && out.UnknownBlock > 0:
		for _, hash := range ev.Engine {
			r.orphans.StoreHashOnly(hash, ev.Tier, s.cfg.CountCopies)
		}
	case len(ev.Local) > 0 && out.UnknownParent == 0:
		r.orphans.Attach(s.mu.index, r.holder, ev.Engine, s.cfg.CountCopies)
	}
}

// SetIncomplete says whether the rank's stream lacks events that nobody has any
// more, as Event.Incomplete does.
func (s *Source) SetIncomplete(dpRank uint32, incomplete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rankLocked(dpRank).streamIncomplete = incomplete
}

// keepLocked puts a copy of the event into the ring and lets the oldest go.
func (s *Source) keepLocked(r *indexedRank, ev event.Event) {
	size := eventBytes(&ev)
	for r.n > 0 && (r.n == s.cfg.Ring || s.mu.bytes+size > s.cfg.RingBytes) {
		s.forgetLocked(r)
	}
	hashes := make([]uint64, 0, len(ev.Engine)+len(ev.Local))
	hashes = append(append(hashes, ev.Engine...), ev.Local...)
	ev.Engine, ev.Local = hashes[:len(ev.Engine):len(ev.Engine)], hashes[len(ev.Engine):]
	if r.n == len(r.ring) {
		grown := make([]event.Event, min(s.cfg.Ring, max(16, 2*r.n)))
		for i := range r.n {
			grown[i] = *r.event(i)
		}
		r.ring, r.at = grown, 0
	}
	r.n++
	*r.event(r.n - 1) = ev
	s.mu.bytes += size
}

func (s *Source) forgetLocked(r *indexedRank) {
	old := r.event(0)
	s.mu.bytes -= eventBytes(old)
	*old = event.Event{}
	r.at = (r.at + 1) % len(r.ring)
	r.n--
}

func (r *indexedRank) event(i int) *event.Event { return &r.ring[(r.at+i)%len(r.ring)] }

// first returns the id of the oldest event in the ring, or of the next event.
func (r *indexedRank) first() uint64 { return r.last - uint64(r.n) + 1 }

func eventBytes(ev *event.Event) int { return 96 + 8*(len(ev.Engine)+len(ev.Local)) }

// Answer returns the reply to the request, at most limit bytes of it, and its
// kind for the metrics; nil for a rank that the Source does not have: another
// publisher of the worker may have it. limit is enough for any one event.
func (s *Source) Answer(request []byte, limit int) ([]byte, Kind) {
	reply := Reply{Kind: Invalid, Incarnation: s.cfg.Incarnation}
	if q, err := DecodeRequest(request); err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.expireLocked()
		if s.mu.ranks[q.DPRank] == nil {
			return nil, Invalid
		}
		if q.Dump != 0 {
			s.partLocked(&reply, q)
		} else {
			s.beginLocked(&reply, q, limit)
		}
	}
	return AppendReply(make([]byte, 0, replyBytes+len(reply.Body)), &reply), reply.Kind
}

// beginLocked answers a request for events, or for a new dump.
func (s *Source) beginLocked(reply *Reply, q Request, limit int) {
	r := s.mu.ranks[q.DPRank]
	reply.Last, reply.Incomplete, reply.StreamIncomplete = r.last, r.incomplete, r.streamIncomplete
	switch {
	case q.To != 0 && q.From > q.To:
		return
	case q.From == 0, q.From < r.first():
		s.dumpLocked(reply, q.DPRank, r, limit)
	case q.From > r.last+1:
		reply.Kind = TooNew
	default:
		s.eventsLocked(reply, q, r, limit)
	}
}

// eventsLocked answers with events from q.From on, which is in the ring or the
// next to come.
func (s *Source) eventsLocked(reply *Reply, q Request, r *indexedRank, limit int) {
	reply.Kind = Events
	to := r.last
	if q.To != 0 {
		to = min(to, q.To)
	}
	b := event.Batch{Space: s.cfg.Space, Worker: s.cfg.Worker, Incarnation: s.cfg.Incarnation, CountCopies: s.cfg.CountCopies}
	room := limit - replyBytes - event.HeaderSize(&b)
	for id := q.From; id <= to; id++ {
		ev := r.event(int(id - r.first()))
		size := event.MaxEventSize(ev)
		if len(b.Events) > 0 && size > room {
			reply.More = true
			break
		}
		room -= size
		b.Events = append(b.Events, *ev)
	}
	if len(b.Events) > 0 {
		reply.Body = event.AppendBatch(make([]byte, 0, event.EncodedSize(&b)), &b)
	}
}

// dumpLocked answers with the first part of a dump: a new one, or the one that
// is being given out if the ring continues it.
func (s *Source) dumpLocked(reply *Reply, dpRank uint32, r *indexedRank, limit int) {
	at := slices.IndexFunc(s.mu.dumps, func(d *dump) bool { return d.dpRank == dpRank })
	if at < 0 || s.mu.dumps[at].last+1 < r.first() || s.mu.dumps[at].part > limit-replyBytes {
		if at < 0 && len(s.mu.dumps) == s.cfg.Dumps {
			at = slices.IndexFunc(s.mu.dumps, func(d *dump) bool { return d.ended })
			if at < 0 {
				reply.Kind = Busy
				return
			}
		}
		if at >= 0 {
			s.mu.dumps = slices.Delete(s.mu.dumps, at, at+1)
		}
		at = len(s.mu.dumps)
		s.mu.dumps = append(s.mu.dumps, &dump{
			number: rand.Uint64() | 1, dpRank: dpRank, last: r.last, incomplete: r.incomplete, streamIncomplete: r.streamIncomplete,
			data: s.encodeLocked(dpRank, r), part: max(1, limit-replyBytes),
		})
	}
	s.partLocked(reply, Request{DPRank: dpRank, Dump: s.mu.dumps[at].number})
}

// encodeLocked returns the rank's dump as frames.
func (s *Source) encodeLocked(dpRank uint32, r *indexedRank) []byte {
	var data []byte
	b := event.Batch{Space: s.cfg.Space, Worker: s.cfg.Worker, Incarnation: s.cfg.Incarnation}
	var copies [][]uint32
	size := 0
	seal := func() {
		if len(b.Events) > 0 {
			data = appendFrame(data, &b, copies)
			b.Events, copies, size = b.Events[:0], copies[:0], 0
		}
	}
	add := func(ev *event.Event, c []uint32) {
		e := *ev
		e.DPRank = dpRank
		e.Engine, e.Local = slices.Clone(ev.Engine), slices.Clone(ev.Local)
		b.Events, copies = append(b.Events, e), append(copies, slices.Clone(c))
		if size += eventBytes(&e); size >= frameTarget {
			seal()
		}
	}
	if r.groups != nil { // first: who reads it keeps places from then on
		r.groups.Dump(add)
	}
	s.mu.index.Dump(r.holder, func(ev *event.Event, c []uint32) bool {
		add(ev, c)
		return true
	})
	r.orphans.Dump(add)
	seal()
	return data
}

// partLocked answers with a part of the dump that is being given out.
func (s *Source) partLocked(reply *Reply, q Request) {
	at := slices.IndexFunc(s.mu.dumps, func(d *dump) bool { return d.number == q.Dump && d.dpRank == q.DPRank })
	if at < 0 {
		reply.Kind = Busy // it was dropped: begin anew
		return
	}
	d := s.mu.dumps[at]
	parts := max(1, (len(d.data)+d.part-1)/d.part)
	if int64(q.Part) >= int64(parts) {
		return
	}
	reply.Kind, reply.Dump, reply.Last, reply.Incomplete, reply.StreamIncomplete = Dump, d.number, d.last, d.incomplete, d.streamIncomplete
	reply.Part, reply.Parts = q.Part, uint32(parts)
	start := int(q.Part) * d.part
	reply.Body = d.data[start:min(len(d.data), start+d.part)]
	d.used, d.ended = s.cfg.Now(), d.ended || int(q.Part) == parts-1
}

// expireLocked drops dumps that nobody has asked for in a while.
func (s *Source) expireLocked() {
	now := s.cfg.Now()
	s.mu.dumps = slices.DeleteFunc(s.mu.dumps, func(d *dump) bool { return now.Sub(d.used) > s.cfg.KeepDump })
}
