package selection

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
)

// Model is one index space and what chooses among its workers.
type Model struct {
	event.Space
	Router *route.Router
	// Endpoint returns the address of the worker's engine; "" if unknown.
	Endpoint func(worker uint64) string
}

// Named is a model that requests may mean by a name.
type Named struct {
	*Model
	Lora    string   // the name, as engines have it, if it is that of a LoRA adapter
	Workers []uint64 // that know the name, ascending; nil: all, or none has said so
}

// Config holds what a Service is made with. Models is needed.
type Config struct {
	// Models returns all models, sorted by space. It is called for each request;
	// the Service does not change the slice.
	Models func() []*Model
	// Named returns those that a request may mean by a name, sorted by space: of each way in which a name may be
	// a model's a list that is not empty, first that which counts where several are. nil: models have no names but their own.
	Named func(name string) [][]Named
	// Unread says why it is not known yet what workers hold; "" if it is. nil: always.
	Unread func() string
	// MaxBody bounds the bytes of a body; 0 is 8 MiB. MaxTokens bounds the
	// elements of an array; 0 is 2^20.
	MaxBody, MaxTokens int
}

// Service answers requests. It is safe for concurrent use.
type Service struct {
	cfg    Config
	byPath map[string]endpoint
}

// New returns a Service.
func New(cfg Config) *Service {
	if cfg.MaxBody <= 0 {
		cfg.MaxBody = 8 << 20
	}
	if cfg.MaxTokens <= 0 {
		cfg.MaxTokens = 1 << 20
	}
	if cfg.Named == nil {
		cfg.Named = func(name string) [][]Named {
			var list []Named
			for _, m := range cfg.Models() {
				if m.Model == name {
					list = append(list, Named{Model: m})
				}
			}
			if list == nil {
				return nil
			}
			return [][]Named{list}
		}
	}
	s := &Service{cfg: cfg, byPath: make(map[string]endpoint)}
	for _, e := range endpoints() {
		s.byPath[e.path] = e
	}
	return s
}

// MaxBody returns how many bytes of a body a server needs to read at most: one
// more than are allowed, so that a body that is too large is seen.
func (s *Service) MaxBody() int { return s.cfg.MaxBody + 1 }

// Request is what a server passes on.
type Request struct {
	Method      string
	Path        string // as sent: escaped, without the query
	Query       string // after the "?"
	ContentType string
	Body        []byte
}

// Answer is what a server sends back. The body is JSON.
type Answer struct {
	Status int
	Body   []byte
	Allow  string // the header of that name with status 405
	Reason string // why the request was refused, of a fixed list; "" if it was not
}

// only refuses other methods, and bodies that are no JSON. Clients that do not
// care about the content type (curl -d) are let in.
func (q *Request) only(methods []string) *edge.Problem {
	if !slices.Contains(methods, q.Method) {
		return edge.NotMethod(strings.Join(methods, ", "))
	}
	if strings.HasPrefix(strings.ToLower(q.ContentType), "application/octet-stream") {
		return edge.Refuse(http.StatusUnsupportedMediaType, "Content-Type", edge.MediaType, "send application/json")
	}
	return nil
}

// target names the model that a request is about.
type target struct {
	model, group string
	hasGroup     bool
	blockSize    uint32 // 0: any
	hasModel     bool
}

func (t *target) fields(f fields) {
	f["model_name"] = func(o *object) { t.model, t.hasModel = o.text(), true }
	f["routing_group"] = func(o *object) { t.group, t.hasGroup = registry.GroupOf(o.text()), true }
	f["block_size"] = func(o *object) { t.blockSize = uint32(o.uint(1 << 20)) }
}

// find returns the one model that the target names.
func (s *Service) find(t *target) (Named, *edge.Problem) {
	if !t.hasModel {
		return Named{}, edge.Bad("model_name", edge.Missing, "name the model")
	}
	no := edge.Refuse(http.StatusNotFound, "model_name", edge.UnknownModel, "no worker serves this model")
	for i, named := range s.cfg.Named(t.model) {
		m, p := t.among(named)
		if p == nil {
			return m, nil
		}
		if i == 0 { // what else has the name is not what it means first
			no = p
		}
	}
	return Named{}, no
}

// among returns the one of the models, of which there is one, that the target means.
func (t *target) among(named []Named) (Named, *edge.Problem) {
	sized := func(m Named) bool { return t.blockSize == 0 || t.blockSize == m.BlockSize }
	var found []Named
	for _, m := range named {
		if m.Group == t.group && sized(m) {
			found = append(found, m)
		}
	}
	if len(found) == 0 && !t.hasGroup && len(named) == 1 && sized(named[0]) {
		found = named
	}
	switch {
	case len(found) == 1, len(found) > 1 && found[1].Model.Model != found[0].Model.Model:
		return found[0], nil
	case len(found) > 1:
		return Named{}, edge.Bad("block_size", edge.Missing, "the model is there with several block sizes; name one")
	}
	for _, m := range named {
		if m.Group == t.group {
			return Named{}, edge.Bad("block_size", edge.BlockSize, "the workers have blocks of "+strconv.Itoa(int(m.BlockSize))+" tokens")
		}
	}
	return Named{}, edge.Refuse(http.StatusNotFound, "routing_group", edge.UnknownGroup, "the model has no such group")
}

// follow answers the routes of one reservation.
func (s *Service) follow(q Request) (Answer, *edge.Problem) {
	escaped, verb, more := strings.Cut(strings.TrimPrefix(q.Path, pathReservations+"/"), "/")
	id, err := url.PathUnescape(escaped)
	path := pathReservation
	if more {
		path += "/" + verb
	}
	e, known := s.byPath[path]
	if err != nil || id == "" || !known {
		return Answer{}, edge.Refuse(http.StatusNotFound, "path", edge.UnknownRoute, "no such route; there are DELETE "+
			pathReservations+"/{id}, and POST …/prefill_complete, …/output, …/output_block and …/failed")
	}
	if p := q.only(e.methods); p != nil {
		return Answer{Allow: strings.Join(e.methods, ", ")}, p
	}
	var tokens uint64
	weight, has := -1.0, false
	var failure failed
	takes := fields{}
	switch verb {
	case "output":
		takes["tokens"] = func(o *object) { tokens, has = o.uint(1<<31-1), true }
	case "output_block":
		takes["decay_fraction"] = func(o *object) { weight = o.float(0, 1) }
	case "failed":
		failure.fields(takes)
	}
	if len(q.Body) > 0 {
		if p := parse(q.Body, takes); p != nil {
			return Answer{}, p
		}
	}
	if verb == "output" && !has {
		return Answer{}, edge.Bad("tokens", edge.Missing, "say how many tokens came out since the last call")
	}
	for _, m := range s.cfg.Models() {
		if !m.Router.Holds(id) {
			continue
		}
		live := true
		switch verb {
		case "":
			live = m.Router.Free(id)
		case "prefill_complete":
			m.Router.MarkPrefillComplete(id) // twice is fine
		case "output":
			live = m.Router.Output(id, int(tokens))
		case "output_block":
			live = m.Router.OutputBlock(id, weight)
		case "failed":
			failure.tell(m.Router, id)
		}
		if live {
			return Answer{Status: http.StatusOK, Body: []byte(`{"status":"ok"}` + "\n")}, nil
		}
	}
	return Answer{}, edge.Refuse(http.StatusNotFound, "selection_id", edge.UnknownSelection,
		"no live reservation has this id: it was freed, its lease ended, or its worker is gone")
}
