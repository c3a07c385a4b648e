package console

import (
	"cmp"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/shard"
)

const (
	usualChildren = 50
	mostChildren  = 1000
	mostHolders   = 1000
	// mostLooked bounds the branches that a call looks at, in each shard.
	mostLooked = 1 << 16
)

// shownSpace names an index space.
type shownSpace struct {
	Model     string `json:"model"`
	BlockSize uint32 `json:"block_size"`
	Group     string `json:"group"`
}

func showSpace(sp event.Space) shownSpace { return shownSpace{sp.Model, sp.BlockSize, sp.Group} }

// prefixes is the answer of GET api/prefixes.
type prefixes struct {
	Space    shownSpace   `json:"space"`
	Spaces   []shownSpace `json:"spaces"`   // that there are, for who named none
	Node     *string      `json:"node"`     // null: the root
	Sampled  *int         `json:"sampled"`  // prompts that hits are counted of; null: none are
	Children []prefix     `json:"children"` // those of most holders first
	More     int          `json:"more"`     // children that are not listed
	Whole    bool         `json:"whole"`    // all children were looked at: else there are more than so many, and wider ones may be among them
	At       int64        `json:"at_ms"`
}

// prefix is a stretch of blocks in which nothing forks.
type prefix struct {
	ID       string `json:"id"`
	Blocks   int    `json:"blocks"`
	Depth    int    `json:"depth"` // blocks from the root to its end
	Holders  int    `json:"holders"`
	Hits     *int   `json:"hits"`     // of the prompts that were sampled, those that have its first block
	Children *int   `json:"children"` // null: too many to count
}

// prefixes answers GET api/prefixes.
func (c *Console) prefixes(r *request) (*edge.Reply, *edge.Problem) {
	limit, no := whole(r, "limit", usualChildren, mostChildren)
	if no != nil {
		return nil, no
	}
	n, no := c.node(r)
	if no != nil {
		return nil, no
	}
	a := prefixes{Space: showSpace(n.space), Spaces: c.spaces(r), Children: []prefix{}, At: time.Now().UnixMilli()}
	x := c.cfg.Replica.Set().Lookup(n.space)
	if x == nil {
		return edge.ReplyJSON(a), nil
	}
	found, ok := x.Branches(n.path, limit, mostLooked)
	if !ok {
		return nil, gone()
	}
	if len(n.path) > 0 {
		id := r.args.Get("node")
		a.Node = &id
	}
	var hits map[uint64]int
	if prompts := c.cfg.Prompts.Of(n.space); c.cfg.Prompts != nil {
		sampled := len(prompts)
		a.Sampled, hits = &sampled, count(x, n.path, prompts)
	}
	for _, b := range found.List {
		p := prefix{
			ID: c.nodes.name(n.below(&b)), Blocks: b.Blocks, Depth: int(b.Depth) + b.Blocks, Holders: b.Holders,
		}
		if b.Children >= 0 {
			p.Children = &b.Children
		}
		if hits != nil {
			h := hits[b.First]
			p.Hits = &h
		}
		a.Children = append(a.Children, p)
	}
	a.More, a.Whole = max(0, found.Looked-len(found.List)), found.Whole
	return edge.ReplyJSON(a), nil
}

// count returns how many of the prompts go on with which block after the path.
func count(x *shard.Space, path []core.Step, prompts []account.Prompt) map[uint64]int {
	hits := make(map[uint64]int)
	for _, p := range prompts {
		if at, through := x.Follows(path, p.Local, mostLooked); through && at < len(p.Local) {
			hits[p.Local[at]]++
		}
	}
	return hits
}

// holders is the answer of GET api/prefixes/holders.
type holders struct {
	Space   shownSpace `json:"space"`
	Node    string     `json:"node"`
	Blocks  int        `json:"blocks"`
	Holders []holder   `json:"holders"` // those of most blocks first
	More    int        `json:"more"`
	// Pools are those that workers name which have some of it, by name; they read it all, whoever stored it.
	Pools []poolHolder `json:"pools,omitempty"`
	At    int64        `json:"at_ms"`
}

type poolHolder struct {
	Name  string `json:"pool"`
	Depth uint32 `json:"depth"` // how many leading blocks of the node it has
}

type holder struct {
	Worker string `json:"worker"`
	Rank   uint32 `json:"rank"`
	Tier   string `json:"tier"`  // the lowest that one of the leading blocks that it has is on
	Depth  uint32 `json:"depth"` // how many leading blocks of the node it has
	// Device, HostPinned, Disk and External are that counted with the tiers above each.
	Device     uint32 `json:"device"`
	HostPinned uint32 `json:"host_pinned"`
	Disk       uint32 `json:"disk"`
	External   uint32 `json:"external"`
}

// holders answers GET api/prefixes/holders.
func (c *Console) holders(r *request) (*edge.Reply, *edge.Problem) {
	limit, no := whole(r, "limit", mostHolders, mostHolders)
	if no != nil {
		return nil, no
	}
	n, no := c.node(r)
	if no == nil && len(n.path) == 0 {
		no = edge.Bad("node", edge.Missing, "name the node")
	}
	if no != nil {
		return nil, no
	}
	a := holders{Space: showSpace(n.space), Node: r.args.Get("node"), Holders: []holder{}, At: time.Now().UnixMilli()}
	x := c.cfg.Replica.Set().Lookup(n.space)
	if x == nil {
		return nil, gone()
	}
	var ok bool
	a.Blocks, ok = x.HoldersOf(n.path, mostLooked, func(m shard.Member, d [event.NumTiers]uint32) {
		if m.ID().Pool() {
			if name, shown := x.PoolName(m); shown {
				a.Pools = append(a.Pools, poolHolder{name, d[event.External]})
			}
			return
		}
		tier := event.Device
		for d[tier] < d[event.NumTiers-1] {
			tier++
		}
		id := m.ID()
		a.Holders = append(a.Holders, holder{
			strconv.FormatUint(id.Worker, 10), id.DPRank, tier.String(), d[event.NumTiers-1], d[event.Device], d[event.HostPinned], d[event.Disk], d[event.External],
		})
	})
	if !ok {
		return nil, gone()
	}
	slices.SortFunc(a.Holders, func(a, b holder) int {
		return cmp.Or(cmp.Compare(b.Depth, a.Depth), cmp.Compare(len(a.Worker), len(b.Worker)), cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Rank, b.Rank))
	})
	slices.SortFunc(a.Pools, func(a, b poolHolder) int { return strings.Compare(a.Name, b.Name) })
	a.More = max(0, len(a.Holders)-limit)
	a.Holders = a.Holders[:len(a.Holders)-a.More]
	return edge.ReplyJSON(a), nil
}

// gone is the problem of a node that is no more.
func gone() *edge.Problem {
	return edge.Refuse(http.StatusNotFound, "node", edge.UnknownNode, "the node is gone, or of another process; begin at the root")
}

// node returns the node that the arguments name, or the root of a space.
func (c *Console) node(r *request) (node, *edge.Problem) {
	if id := r.args.Get("node"); id != "" {
		n, ok := c.nodes.find(id)
		if !ok || !r.sees(n.space.Group) {
			return node{}, gone()
		}
		return n, nil
	}
	sp, no := c.spaceOf(r)
	return node{space: sp}, no
}

// spaces returns those that the caller may see.
func (c *Console) spaces(r *request) []shownSpace {
	list := []shownSpace{}
	for _, sp := range c.cfg.Replica.Set().Spaces() {
		if r.sees(sp.Group) {
			list = append(list, showSpace(sp))
		}
	}
	return list
}

// spaceOf returns the space that the arguments name; the first one where they fit several.
func (c *Console) spaceOf(r *request) (event.Space, *edge.Problem) {
	size, no := whole(r, "block_size", 0, math.MaxInt32)
	if no != nil {
		return event.Space{}, no
	}
	for _, m := range c.models() {
		if m.Cache != nil && r.sees(m.Space.Group) && (!r.args.Has("model") || r.args.Get("model") == m.Space.Model) {
			return event.Space{}, edge.Refuse(http.StatusNotFound, "model", edge.UnknownModel, "no tree is shown without events: what ranks hold is guessed from the choices")
		}
	}
	for _, sp := range c.cfg.Replica.Set().Spaces() {
		if r.sees(sp.Group) && (!r.args.Has("model") || r.args.Get("model") == sp.Model) && (size == 0 || uint32(size) == sp.BlockSize) &&
			(!r.args.Has("group") || r.args.Get("group") == sp.Group) {
			return sp, nil
		}
	}
	if !r.args.Has("model") {
		return event.Space{}, edge.Refuse(http.StatusNotFound, "model", edge.UnknownModel, "nothing is held")
	}
	return event.Space{}, edge.Refuse(http.StatusNotFound, "model", edge.UnknownModel, "there is no such space; without a model the first one is taken")
}

// whole reads an argument that is a whole number from 1 to most; without it, it is usual.
func whole(r *request, name string, usual, most int) (int, *edge.Problem) {
	if !r.args.Has(name) {
		return usual, nil
	}
	n, err := strconv.Atoi(r.args.Get(name))
	if err != nil || n < 1 || n > most {
		return 0, edge.Bad(name, edge.OutOfRange, "give a whole number from 1 to "+strconv.Itoa(most))
	}
	return n, nil
}
