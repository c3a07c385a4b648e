package proxy

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/account"
)

const (
	pathDecisions = "/v1/decisions"
	pathDecision  = pathDecisions + "/{id}"
)

// headerReceipt tells trusted callers what the choice of a worker went by, as a dictionary
// of RFC 9651.
const headerReceipt = prefix + "Receipt"

// receipt is the header's value.
func receipt(pair *route.Pair) string {
	best := &pair.Decode
	if pair.Prefill != nil {
		best = pair.Prefill // who computes the prompt
	}
	b := make([]byte, 0, 160)
	b = append(b, `worker="`...)
	b = strconv.AppendUint(b, best.Worker, 10)
	b = append(b, `", rank=`...)
	b = strconv.AppendUint(b, uint64(best.DPRank), 10)
	a := &best.Account
	number := func(name string, v int) {
		b = append(append(append(b, ", "...), name...), '=')
		b = strconv.AppendInt(b, int64(v), 10)
	}
	if a.Known {
		number("prompt", a.Prompt)
		number("reachable", a.Reachable)
		number("selected", a.Selected)
		if a.Why != account.NoShortfall {
			b = append(append(append(b, `, not-selected="`...), a.Why.String()...), '"')
		}
	}
	b = append(b, ", predicted-ms="...)
	b = strconv.AppendFloat(b, float64(best.First)/float64(time.Millisecond), 'f', 1, 64)
	if best.Decision != "" {
		b = append(append(append(b, `, decision="`...), best.Decision...), '"')
	}
	return string(b)
}

// maxListed bounds an answer of GET /v1/decisions without a limit of its own.
const maxListed = 100

// decisions answers GET /v1/decisions: those that are kept, newest first, without their
// tables; or with them as JSON lines.
func (p *Proxy) decisions(w http.ResponseWriter, r *http.Request) {
	q, lines, no := decisionQuery(r.URL.RawQuery)
	if no != nil {
		p.refuse(w, no)
		return
	}
	list := p.findDecisions(r, q)
	p.giveTime(w)
	if !lines {
		for _, d := range list {
			d.Ranks = nil
		}
		writeJSON(w, http.StatusOK, edge.JSON(map[string]any{"decisions": list}))
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(w)
	for _, d := range list {
		if out.Encode(d) != nil {
			return // the client is gone
		}
	}
}

// oneDecision answers GET /v1/decisions/{id}.
func (p *Proxy) oneDecision(w http.ResponseWriter, r *http.Request) {
	list := p.findDecisions(r, account.Query{ID: strings.TrimPrefix(r.URL.Path, pathDecisions+"/")})
	if len(list) != 1 {
		p.refuse(w, refuse(http.StatusNotFound, "unknown_decision", "no such decision is kept; see --decisions"))
		return
	}
	writeJSON(w, http.StatusOK, edge.JSON(list[0]))
}

// findDecisions returns what the caller may see of them.
func (p *Proxy) findDecisions(r *http.Request, q account.Query) []*account.Decision {
	if tenant := tenantOf(r); tenant != nil {
		if q.Group != nil && *q.Group != *tenant {
			return []*account.Decision{}
		}
		q.Group = tenant
	}
	list := p.cfg.Decisions.Find(q)
	for _, d := range list { // copies
		d.Group = registry.GroupName(d.Group)
	}
	if list == nil {
		list = []*account.Decision{}
	}
	return list
}

// decisionQuery reads a URL's arguments.
func decisionQuery(raw string) (q account.Query, lines bool, no *refusal) {
	args, err := url.ParseQuery(raw)
	if err != nil {
		return q, false, refuse(http.StatusBadRequest, "invalid_argument", "the URL's arguments are malformed")
	}
	q.Limit = maxListed
	for name, values := range args {
		value, ok := values[0], len(values) == 1
		switch name {
		case "model_name":
			q.Model = value
		case "routing_group":
			group := registry.GroupOf(value)
			q.Group = &group
		case "request_id":
			q.RequestID = value
		case "worker_id":
			id, err := strconv.ParseUint(value, 10, 64)
			q.Worker, ok = &id, ok && err == nil
		case "kept":
			q.Kind = account.Kind(value)
			ok = ok && (q.Kind == account.Last || q.Kind == account.Slowest || q.Kind == account.Worst)
		case "limit":
			q.Limit, err = strconv.Atoi(value)
			ok = ok && err == nil && q.Limit >= 1
		case "format":
			lines, ok = value == "jsonl", ok && (value == "json" || value == "jsonl")
		default:
			return q, false, refuse(http.StatusBadRequest, "invalid_argument", "the URL has an argument that this route does not know: "+shorten(name))
		}
		if !ok {
			return q, false, refuse(http.StatusBadRequest, "invalid_argument", "the URL's argument "+shorten(name)+" is given twice or has no value that it may have: "+shorten(value))
		}
	}
	if lines && !args.Has("limit") {
		q.Limit = 0
	}
	return q, lines, nil
}
