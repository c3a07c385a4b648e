package console

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/replica"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

// worker is the answer of GET api/worker.
type worker struct {
	Worker string        `json:"worker"`
	At     int64         `json:"at_ms"`
	Spaces []workerSpace `json:"spaces"`
}

// workerSpace is a worker in one space.
type workerSpace struct {
	shownSpace
	Registration *registration `json:"registration"` // null: it is not registered
	Ranks        []workerRank  `json:"ranks"`
}

type registration struct {
	Name      string  `json:"name"`
	State     string  `json:"state"`
	Role      string  `json:"role"`
	Transport string  `json:"transport"`
	Drained   bool    `json:"drained"`
	DrainedBy string  `json:"drained_by"`
	Capacity  *uint64 `json:"capacity_blocks"` // of a rank
	LeaseMs   int64   `json:"lease_ms"`
	LastSeen  *int64  `json:"last_seen_ms"`
	LeftAt    *int64  `json:"left_ms"`
	LeftBy    string  `json:"left_by"`
	Mismatch  *string `json:"mismatch"`
	Conflict  *string `json:"conflict"`
}

type workerRank struct {
	Rank       uint32      `json:"rank"`
	Device     int         `json:"device"` // blocks
	HostPinned int         `json:"host_pinned"`
	Disk       int         `json:"disk"`
	External   int         `json:"external"`
	Inferred   int         `json:"inferred"`
	Stream     *source     `json:"stream"` // null: its events are not read
	Direct     *source     `json:"direct"` // from its engine's own socket; null: it is not read
	Load       *workerLoad `json:"load"`   // null: nothing is routed here
}

type workerLoad struct {
	Requests      int     `json:"requests"`
	Prefilling    int     `json:"prefilling"`
	PrefillTokens int     `json:"prefill_tokens"`
	DecodeBlocks  float64 `json:"decode_blocks"`
	LeftOut       *string `json:"left_out"` // why it gets no requests; null: it does
	// Of the requests that are over, and whose engine said what it found.
	PromptTokens uint64 `json:"prompt_tokens"`
	FoundTokens  uint64 `json:"found_tokens"`
}

// worker answers GET api/worker.
func (c *Console) worker(r *request) (*edge.Reply, *edge.Problem) {
	id, err := strconv.ParseUint(r.args.Get("id"), 10, 64)
	if err != nil {
		return nil, edge.Bad("id", edge.OutOfRange, "give the worker's id")
	}
	a := worker{Worker: number(id), At: time.Now().UnixMilli(), Spaces: []workerSpace{}}
	spaces := slices.Clone(c.cfg.Replica.Set().Spaces())
	for _, m := range c.models() {
		if !slices.Contains(spaces, m.Space) {
			spaces = append(spaces, m.Space)
		}
	}
	reg := c.cfg.Replica.Registry()
	if reg != nil {
		for _, e := range reg.Snapshot(true) {
			if e.Key.Worker == id && !slices.Contains(spaces, e.Key.Space) {
				spaces = append(spaces, e.Key.Space)
			}
		}
	}
	for _, sp := range spaces {
		if !r.sees(sp.Group) {
			continue
		}
		if s := c.workerIn(reg, sp, id); s != nil {
			a.Spaces = append(a.Spaces, *s)
		}
	}
	if len(a.Spaces) == 0 {
		return nil, edge.Refuse(http.StatusNotFound, "id", edge.UnknownWorker, "there is no such worker")
	}
	return edge.ReplyJSON(a), nil
}

// workerIn returns what is known of the worker in a space; nil: nothing is.
func (c *Console) workerIn(reg *registry.Registry, sp event.Space, id uint64) *workerSpace {
	s := &workerSpace{shownSpace: showSpace(sp), Ranks: []workerRank{}}
	ranks := map[uint32]*workerRank{}
	rank := func(n uint32) *workerRank {
		if ranks[n] == nil {
			ranks[n] = &workerRank{Rank: n}
		}
		return ranks[n]
	}
	if reg != nil {
		if e, ok := reg.Lookup(registry.Key{Space: sp, Worker: id}); ok {
			s.Registration = registrationOf(&e)
			for _, n := range e.Ranks {
				rank(n)
			}
		}
	}
	if x := c.cfg.Replica.Set().Lookup(sp); x != nil {
		x.EachMember(func(m shard.Member) {
			if m.ID().Worker == id && !m.ID().Pool() {
				k, st := rank(m.ID().DPRank), m.Stat()
				k.Device, k.HostPinned, k.Disk, k.External, k.Inferred = st.Held[event.Device], st.Held[event.HostPinned], st.Held[event.Disk], st.Held[event.External], st.Inferred
			}
		})
	}
	c.cfg.Replica.EachReading(func(g *replica.Reading) {
		if g.Worker != id || g.Space != sp {
			return
		}
		one := sourceOf(g)
		if k := rank(g.DPRank); g.Direct {
			k.Direct = &one
		} else {
			k.Stream = &one
		}
	})
	m := c.modelOf(sp)
	guessed := guessedOf(m)
	for _, l := range loadsOf(m) {
		if l.Worker == id {
			k := rank(l.DPRank)
			if m.Cache != nil {
				k.Device = guessed[l.RankID]
			}
			k.Load = &workerLoad{
				Requests: l.Requests, Prefilling: l.Prefilling, PrefillTokens: l.PrefillTokens, DecodeBlocks: l.DecodeBlocks, PromptTokens: l.Prompt, FoundTokens: l.Found,
			}
			if l.Left != route.Eligible {
				why := l.Left.String()
				rank(l.DPRank).Load.LeftOut = &why
			}
		}
	}
	if s.Registration == nil && len(ranks) == 0 {
		return nil
	}
	for _, k := range ranks {
		s.Ranks = append(s.Ranks, *k)
	}
	slices.SortFunc(s.Ranks, func(a, b workerRank) int { return cmp.Compare(a.Rank, b.Rank) })
	return s
}

// modelOf returns the model of a space; nil if it is not routed.
func (c *Console) modelOf(sp event.Space) *fleet.Model {
	for _, m := range c.models() {
		if m.Space == sp {
			return m
		}
	}
	return nil
}

// models returns those that are routed; none where none is.
func (c *Console) models() []*fleet.Model {
	if c.cfg.Models == nil {
		return nil
	}
	return c.cfg.Models()
}

// guessedOf returns how many blocks each rank is taken to hold where the router's choices stand in
// the place of an index; nil where there is one.
func guessedOf(m *fleet.Model) map[shard.RankID]int {
	if m == nil || m.Cache == nil {
		return nil
	}
	held := make(map[shard.RankID]int)
	m.Cache.EachRank(func(id shard.RankID, blocks int) { held[id] = blocks })
	return held
}

// loadsOf returns the loads of a model's ranks, if there is one.
func loadsOf(m *fleet.Model) []route.RankLoad {
	if m == nil {
		return nil
	}
	return m.Router.Loads()
}

func registrationOf(e *registry.Entry) *registration {
	g := &registration{
		Name: e.Name, State: e.State.String(), Role: cmp.Or(string(e.Role), string(registry.Aggregated)), Transport: string(e.Transport),
		Drained: e.Drained, DrainedBy: e.DrainedBy, LeaseMs: e.Lease.Milliseconds(), LastSeen: moment(e.LastSeen), LeftAt: moment(e.Left.At),
		LeftBy: e.LeftBy.String(), Mismatch: some(e.Mismatch), Conflict: some(e.Conflict),
	}
	if e.TotalBlocks > 0 {
		g.Capacity = &e.TotalBlocks
	}
	return g
}
