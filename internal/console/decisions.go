package console

import (
	"net/http"
	"strconv"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route/account"
)

const (
	usualDecisions = 100
	mostDecisions  = 1000
)

// decisionsOf returns what the caller may see of those that are asked for.
func (c *Console) decisionsOf(r *request, q account.Query) []*account.Decision {
	if r.Tenant != nil {
		if q.Group != nil && *q.Group != *r.Tenant {
			return nil
		}
		q.Group = r.Tenant
	}
	list := c.cfg.Decisions.Find(q)
	for _, d := range list { // copies
		d.Group = registry.GroupName(d.Group)
	}
	return list
}

// listedDecision is one as /v1/decisions has it, but for workers' ids: they are texts, as a
// page's numbers do not hold all of them.
type listedDecision struct {
	*account.Decision
	Worker string      `json:"worker_id"`
	BestAt *string     `json:"reachable_worker_id"`
	Ranks  []listedRow `json:"candidates,omitempty"`
}

type listedRow struct {
	*account.Row
	Worker string `json:"worker_id"`
}

func listed(d *account.Decision, table bool) *listedDecision {
	l := &listedDecision{Decision: d, Worker: number(d.Worker)}
	if d.BestAt != nil {
		l.BestAt = some(number(*d.BestAt))
	}
	if table {
		for i := range d.Ranks {
			l.Ranks = append(l.Ranks, listedRow{&d.Ranks[i], number(d.Ranks[i].Worker)})
		}
	}
	return l
}

// decisions answers GET api/decisions: without tables.
func (c *Console) decisions(r *request) (*edge.Reply, *edge.Problem) {
	q := account.Query{RequestID: r.args.Get("request_id"), Kind: account.Kind(r.args.Get("kept"))}
	var no *edge.Problem
	if q.Limit, no = whole(r, "limit", usualDecisions, mostDecisions); no != nil {
		return nil, no
	}
	if name := r.args.Get("model_name"); name != "" {
		q.Models = []string{name}
	}
	if r.args.Has("routing_group") {
		group := registry.GroupOf(r.args.Get("routing_group"))
		q.Group = &group
	}
	if r.args.Has("worker_id") {
		id, err := strconv.ParseUint(r.args.Get("worker_id"), 10, 64)
		if err != nil {
			return nil, edge.Bad("worker_id", edge.OutOfRange, "give a worker's id")
		}
		q.Worker = &id
	}
	switch q.Kind {
	case "", account.Last, account.Slowest, account.Worst:
	default:
		return nil, edge.Bad("kept", edge.OutOfRange, "give last, slowest or worst_predicted")
	}
	if c.cfg.Decisions == nil {
		return edge.ReplyJSON(map[string]any{"decisions": nil}), nil
	}
	list := []*listedDecision{}
	for _, d := range c.decisionsOf(r, q) {
		list = append(list, listed(d, false))
	}
	return edge.ReplyJSON(map[string]any{"decisions": list}), nil
}

// decision answers GET api/decisions/{id}.
func (c *Console) decision(r *request) (*edge.Reply, *edge.Problem) {
	list := c.decisionsOf(r, account.Query{ID: r.rest})
	if len(list) != 1 {
		return nil, edge.Refuse(http.StatusNotFound, "id", edge.UnknownDecision, "no such decision is kept; see --decisions")
	}
	return edge.ReplyJSON(listed(list[0], true)), nil
}
