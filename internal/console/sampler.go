package console

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/replica"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/shard"
)

const (
	// entriesEvery is how often registrations are read although nobody has told of a
	// change: how far workers say that their streams are changes with each heartbeat.
	entriesEvery = 5 * time.Second
	// deadFor is how long a worker whose lease was lost is shown.
	deadFor = 10 * time.Minute
	// hitFading is what a second leaves of the weight of the tokens before it: those of
	// the last half minute make most of a hit rate.
	hitFading = 0.967
	// maxDecisions bounds the decisions in a frame.
	maxDecisions = 10
)

// sampler looks at the fleet. One goroutine has it.
type sampler struct {
	cfg    *Config
	at     time.Time // of the last look
	number uint64
	epoch  uint64 // of who is there
	spaces map[event.Space]*space
	order  []*space  // sorted
	groups []*group  // sorted
	perRow string    // what a cell is: rank or worker
	heard  time.Time // of NATS, where that is gone: what its events tell is as of then

	sub       *registry.Subscription
	entries   []registry.Entry
	entriesAt time.Time

	lookups   rate
	sampled   uint64 // decisions that were seen
	decisions []*account.Decision
	rss       int64
}

func newSampler(cfg *Config) *sampler {
	s := &sampler{cfg: cfg, spaces: make(map[event.Space]*space), epoch: uint64(time.Now().UnixMilli())} // no other process's
	_, s.sampled = cfg.Decisions.After(math.MaxUint64, 0)
	return s
}

func (s *sampler) close() {
	if s.sub != nil {
		s.sub.Close()
	}
}

// space is one index space.
type space struct {
	event.Space
	ranks  map[shard.RankID]*rank
	blocks int
	lag    uint64 // messages
	events uint64 // since the sampler began
	past   past
	model  bool // it is routed
}

// rank is one of the fleet. What may not be known is NaN where it is not.
type rank struct {
	shard.RankID
	role     string
	seen     uint64 // the look that found it
	state    state
	held     int
	capacity uint64  // blocks; 0: unknown
	load     float64 // requests
	last     time.Time
	events   uint64 // that its reading has told of
	read     bool   // its reading was seen before

	incarnation, published uint64 // by its announcement
	announced              bool
	lag                    float64

	prompt, found, tokens, hits float64 // of its engine's reports: counted, and of late
	reported                    bool
}

// group is the ranks of a space that have one role, sorted.
type group struct {
	key   string
	space *space
	role  string
	ranks []*rank
	first []int32 // of each cell's, and the end
	state []byte  // by cell
	x     [numMetrics][]float64
	whole bool // capacity is known of some
}

// look looks at everything.
func (s *sampler) look(now time.Time) {
	s.number++
	s.at = now
	changed := s.readRegistry(now)
	changed = s.readIndex() || changed
	changed = s.readModels() || changed
	changed = s.readStreams() || changed
	for _, sp := range s.spaces {
		for id, r := range sp.ranks {
			if r.seen != s.number {
				delete(sp.ranks, id)
				changed = true
			}
		}
		if len(sp.ranks) == 0 && !sp.model {
			delete(s.spaces, sp.Space)
			changed = true
		}
	}
	if changed {
		s.regroup()
	}
	for _, g := range s.groups {
		g.fill(now)
	}
	for _, sp := range s.order {
		sp.past.note(now, s.counters(sp))
	}
	if s.cfg.Lookups != nil {
		s.lookups.note(now, s.cfg.Lookups())
	}
	s.decisions, s.sampled = s.cfg.Decisions.After(s.sampled, maxDecisions)
	s.rss = resident()
}

// space returns the space, made if it is new.
func (s *sampler) space(key event.Space) *space {
	sp := s.spaces[key]
	if sp == nil {
		sp = &space{Space: key, ranks: make(map[shard.RankID]*rank)}
		s.spaces[key] = sp
	}
	return sp
}

// rank returns the space's rank as one that is there. The first to find it in a look
// makes it new.
func (s *sampler) rank(sp *space, id shard.RankID, changed *bool) *rank {
	r := sp.ranks[id]
	if r == nil {
		r = &rank{RankID: id, role: string(registry.Aggregated)}
		sp.ranks[id] = r
		*changed = true
	}
	if r.seen != s.number {
		r.seen, r.state, r.held, r.load, r.lag, r.last, r.announced = s.number, well, 0, math.NaN(), math.NaN(), time.Time{}, false
	}
	return r
}

func (r *rank) is(st state) { r.state = max(r.state, st) }

// readRegistry takes who is registered.
func (s *sampler) readRegistry(now time.Time) (changed bool) {
	reg := s.cfg.Replica.Registry()
	if reg == nil {
		return false
	}
	if s.sub == nil {
		s.sub = reg.Subscribe(1) // only whether there was something
	}
	if len(s.sub.Next()) > 0 || now.Sub(s.entriesAt) >= entriesEvery || s.entries == nil {
		s.entries, s.entriesAt = reg.Snapshot(true), now
	}
	for i := range s.entries {
		e := &s.entries[i]
		if !e.Present() && (e.State != registry.Lost || now.Sub(e.Left.At) > deadFor) {
			continue
		}
		sp := s.space(e.Key.Space)
		ranks := e.Ranks
		if len(ranks) == 0 {
			ranks = []uint32{0}
		}
		for _, n := range ranks {
			r := s.rank(sp, shard.RankID{Worker: e.Key.Worker, DPRank: n}, &changed)
			if role := cmp.Or(string(e.Role), string(registry.Aggregated)); r.role != role {
				r.role, changed = role, true
			}
			r.capacity, r.incarnation = e.TotalBlocks, e.Incarnation
			switch {
			case e.State == registry.Lost:
				r.is(dead)
			case e.State == registry.Suspect:
				r.is(silent)
			}
			if e.Drained {
				r.is(draining)
			}
			if e.Mismatch != "" {
				r.is(mismatch)
			}
			if e.Conflict != "" {
				r.is(conflict)
			}
		}
		for _, p := range e.Last {
			if r := sp.ranks[shard.RankID{Worker: e.Key.Worker, DPRank: p.DPRank}]; r != nil {
				r.published, r.announced = p.ID, true
			}
		}
	}
	return changed
}

// readIndex takes what is held.
func (s *sampler) readIndex() (changed bool) {
	set := s.cfg.Replica.Set()
	for _, key := range set.Spaces() {
		x := set.Lookup(key)
		if x == nil {
			continue
		}
		sp := s.space(key)
		sp.blocks = 0
		x.EachMember(func(m shard.Member) {
			if m.ID().Pool() {
				return
			}
			r := s.rank(sp, m.ID(), &changed)
			r.held = m.Held()
			sp.blocks += r.held
		})
	}
	return changed
}

// readModels takes what requests occupy and have found.
func (s *sampler) readModels() (changed bool) {
	if s.cfg.Models == nil {
		return false
	}
	for _, sp := range s.spaces {
		sp.model = false
	}
	for _, m := range s.cfg.Models() {
		sp := s.space(m.Space)
		sp.model = true
		guessed := guessedOf(m)
		if m.Cache != nil {
			sp.blocks = 0
		}
		for _, l := range m.Router.Loads() {
			r := s.rank(sp, l.RankID, &changed)
			r.load = float64(l.Requests)
			if m.Cache != nil {
				r.held = guessed[l.RankID]
				sp.blocks += r.held
			}
			switch l.Left {
			case route.Draining:
				r.is(draining)
			case route.Dead:
				r.is(dead)
			case route.Failing:
				r.is(silent)
			}
			prompt, found := float64(l.Prompt), float64(l.Found)
			if r.reported && prompt >= r.prompt {
				r.tokens, r.hits = r.tokens*hitFading+prompt-r.prompt, r.hits*hitFading+found-r.found
			}
			r.prompt, r.found, r.reported = prompt, found, true
		}
	}
	return changed
}

// readStreams takes how events are read.
func (s *sampler) readStreams() (changed bool) {
	s.cfg.Replica.EachReading(func(g *replica.Reading) {
		if g.State == follow.Departed {
			return
		}
		sp := s.space(g.Space)
		r := s.rank(sp, g.RankID, &changed)
		r.last = g.LastEvent
		if r.read && g.Events >= r.events {
			sp.events += g.Events - r.events
		}
		r.events, r.read = g.Events, true
		if r.announced && (r.incarnation == 0 || r.incarnation == g.Incarnation) {
			r.lag = float64(r.published - min(r.published, g.LastID))
		}
		if g.Stale {
			r.is(stale)
		}
		switch g.State {
		case follow.Waiting, follow.Lossy:
			r.is(gap)
		case follow.Recovering:
			r.is(recovering)
		case follow.Truncated:
			r.is(truncated)
		case follow.Away:
			r.is(silent)
		case follow.Contested:
			r.is(conflict)
		case follow.Stale:
			r.is(stale)
		case follow.Unknown, follow.Following, follow.Departed:
		}
	})
	for _, sp := range s.spaces {
		sp.lag = 0
	}
	streams := s.cfg.Replica.Streams()
	s.heard = heardLast(streams, connected(s.cfg.Replica))
	for i := range streams {
		if sp := s.spaces[streams[i].Space]; sp != nil {
			sp.lag += streams[i].Lag
		}
	}
	return changed
}

// maxCells is how many ranks there may be for each to have a cell.
const maxCells = 20_000

// regroup puts the ranks in order, anew.
func (s *sampler) regroup() {
	s.epoch++
	s.order, s.groups, s.perRow = s.order[:0], nil, "rank"
	n := 0
	for _, sp := range s.spaces {
		s.order = append(s.order, sp)
		n += len(sp.ranks)
	}
	if n > maxCells {
		s.perRow = "worker"
	}
	slices.SortFunc(s.order, func(a, b *space) int {
		return cmp.Or(strings.Compare(a.Model, b.Model), cmp.Compare(a.BlockSize, b.BlockSize), strings.Compare(a.Group, b.Group))
	})
	for _, sp := range s.order {
		ranks := make([]*rank, 0, len(sp.ranks))
		for _, r := range sp.ranks {
			ranks = append(ranks, r)
		}
		slices.SortFunc(ranks, func(a, b *rank) int {
			return cmp.Or(strings.Compare(a.role, b.role), cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.DPRank, b.DPRank))
		})
		for len(ranks) > 0 {
			end := slices.IndexFunc(ranks, func(r *rank) bool { return r.role != ranks[0].role })
			if end < 0 {
				end = len(ranks)
			}
			g := &group{space: sp, role: ranks[0].role, ranks: ranks[:end], key: keyOf(sp.Space, ranks[0].role)}
			for i, r := range g.ranks {
				if i == 0 || s.perRow == "rank" || r.Worker != g.ranks[i-1].Worker {
					g.first = append(g.first, int32(i))
				}
			}
			g.first = append(g.first, int32(end))
			for m := range g.x {
				g.x[m] = make([]float64, len(g.first)-1)
			}
			s.groups, ranks = append(s.groups, g), ranks[end:]
		}
	}
}

// fill computes what the group's cells show.
func (g *group) fill(now time.Time) {
	g.state = make([]byte, len(g.first)-1) // frames keep the one before
	g.whole = slices.ContainsFunc(g.ranks, func(r *rank) bool { return r.capacity > 0 })
	for i := range g.state {
		var blocks, capacity, tokens, hits float64
		requests, behind, last := math.NaN(), math.NaN(), time.Time{}
		for _, r := range g.ranks[g.first[i]:g.first[i+1]] {
			g.state[i] = max(g.state[i], byte(r.state))
			blocks, capacity = blocks+float64(r.held), capacity+float64(r.capacity)
			tokens, hits = tokens+r.tokens, hits+r.hits
			requests, behind = sum(requests, r.load), sum(behind, r.lag)
			if r.last.After(last) {
				last = r.last
			}
		}
		g.x[held][i], g.x[load][i] = blocks, requests
		if g.whole {
			g.x[held][i] = part(blocks, capacity)
		}
		g.x[hit][i], g.x[lag][i], g.x[age][i] = math.NaN(), behind, math.NaN()
		if tokens >= 1 {
			g.x[hit][i] = part(hits, tokens)
		}
		if !last.IsZero() {
			g.x[age][i] = max(0, now.Sub(last).Seconds())
		}
	}
}

// sum adds what is known.
func sum(a, b float64) float64 {
	switch {
	case math.IsNaN(a):
		return b
	case math.IsNaN(b):
		return a
	}
	return a + b
}

// part returns a of b; NaN where there is no b.
func part(a, b float64) float64 {
	if b <= 0 {
		return math.NaN()
	}
	return min(a/b, 1)
}
