package decisions

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route/account"
)

// Path is where they are, and one of them behind a further slash.
const Path = "/v1/decisions"

// maxListed bounds an answer of GET /v1/decisions without a limit of its own.
const maxListed = 100

// Handler answers for all of a Log, at Path and below it.
func Handler(log *account.Log) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		no := edge.Refuse(http.StatusNotFound, "path", edge.UnknownRoute, "no such route")
		id, one := strings.CutPrefix(r.URL.Path, Path+"/")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			no = edge.NotMethod("GET, HEAD")
		case r.URL.Path == Path:
			no = List(w, r, log, nil, func(name string) []string { return []string{name} })
		case one:
			no = One(w, log, nil, id)
		}
		if no != nil {
			edge.Write(w, no.Status, edge.TypeJSON, no.JSON())
		}
	})
}

// List answers with those that are kept, newest first, without their tables; or with them
// as JSON lines. A group, if it is not nil, bounds what the caller may see; named are the models that
// a name stands for.
func List(w http.ResponseWriter, r *http.Request, log *account.Log, group *string, named func(name string) []string) *edge.Problem {
	q, lines, no := parse(r.URL.RawQuery, named)
	if no != nil {
		return no
	}
	list := find(log, q, group)
	if !lines {
		for _, d := range list {
			d.Ranks = nil
		}
		edge.Write(w, http.StatusOK, edge.TypeJSON, edge.JSON(map[string]any{"decisions": list}))
		return nil
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(w)
	for _, d := range list {
		if out.Encode(d) != nil {
			break // the client is gone
		}
	}
	return nil
}

// One answers with one of them, and its table.
func One(w http.ResponseWriter, log *account.Log, group *string, id string) *edge.Problem {
	list := find(log, account.Query{ID: id}, group)
	if len(list) != 1 || id == "" {
		return edge.Refuse(http.StatusNotFound, "path", "unknown_decision", "no such decision is kept; see --decisions")
	}
	edge.Write(w, http.StatusOK, edge.TypeJSON, edge.JSON(list[0]))
	return nil
}

// find returns what the caller may see of them.
func find(log *account.Log, q account.Query, group *string) []*account.Decision {
	if group != nil {
		if q.Group != nil && *q.Group != *group {
			return []*account.Decision{}
		}
		q.Group = group
	}
	list := log.Find(q)
	for _, d := range list { // copies
		d.Group = registry.GroupName(d.Group)
	}
	if list == nil {
		list = []*account.Decision{}
	}
	return list
}

// parse reads a URL's arguments.
func parse(raw string, named func(name string) []string) (q account.Query, lines bool, no *edge.Problem) {
	args, err := url.ParseQuery(raw)
	if err != nil {
		return q, false, edge.Bad("query", "invalid_argument", "the URL's arguments are malformed")
	}
	q.Limit = maxListed
	for name, values := range args {
		value, ok := values[0], len(values) == 1
		switch name {
		case "model_name":
			if value != "" {
				q.Models = named(value)
			}
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
			return q, false, edge.Bad("query", "invalid_argument", "the URL has an argument that this route does not know: "+shorten(name))
		}
		if !ok {
			return q, false, edge.Bad("query", "invalid_argument", "the URL's argument "+shorten(name)+" is given twice or has no value that it may have: "+shorten(value))
		}
	}
	if lines && !args.Has("limit") {
		q.Limit = 0
	}
	return q, lines, nil
}

func shorten(name string) string {
	if len(name) > 64 {
		name = strings.ToValidUTF8(name[:64], "") + "…"
	}
	return `"` + name + `"`
}
