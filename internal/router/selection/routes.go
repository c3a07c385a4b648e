package selection

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/internal/program/edge"
)

const (
	pathSelect       = "/v1/select"
	pathReserve      = "/v1/select_and_reserve"
	pathReservations = "/v1/reservations"
	pathReservation  = pathReservations + "/{selection_id}"
	pathPotential    = "/v1/potential_loads"
	pathLoads        = "/v1/loads"
	pathBusy         = "/busy_threshold"
)

// endpoint is one of the paths that a Service answers.
type endpoint struct {
	path    string // as OpenAPI has it: with {selection_id}
	methods []string
	answer  func(*Service, context.Context, Request) (Answer, *edge.Problem) // nil: follow does
}

// endpoints returns all paths: nothing else is answered. api/router.yaml
// describes them; a test compares.
func endpoints() []endpoint {
	get, post := []string{http.MethodGet}, []string{http.MethodPost}
	return []endpoint{
		{pathSelect, post, func(s *Service, ctx context.Context, q Request) (Answer, *edge.Problem) {
			return s.choose(ctx, q.Body, false)
		}},
		{pathReserve, post, func(s *Service, ctx context.Context, q Request) (Answer, *edge.Problem) {
			return s.choose(ctx, q.Body, true)
		}},
		{pathReservations, post, func(s *Service, _ context.Context, q Request) (Answer, *edge.Problem) { return s.reserve(q.Body) }},
		{pathReservation, []string{http.MethodDelete}, nil},
		{pathReservation + "/prefill_complete", post, nil},
		{pathReservation + "/output", post, nil},
		{pathReservation + "/output_block", post, nil},
		{pathReservation + "/failed", post, nil},
		{pathPotential, post, func(s *Service, ctx context.Context, q Request) (Answer, *edge.Problem) {
			return s.potential(ctx, q.Body)
		}},
		{pathLoads, get, func(s *Service, _ context.Context, q Request) (Answer, *edge.Problem) { return s.loads(q.Query) }},
		{pathBusy, []string{http.MethodGet, http.MethodPost}, func(s *Service, _ context.Context, q Request) (Answer, *edge.Problem) { return s.busy(q) }},
	}
}

// Routes returns all routes as "METHOD /path", sorted; {selection_id} stands for
// an id.
func Routes() []string {
	var all []string
	for _, e := range endpoints() {
		for _, method := range e.methods {
			all = append(all, method+" "+e.path)
		}
	}
	slices.Sort(all)
	return all
}

// Owns reports whether the path is one of this package's.
func Owns(path string) bool {
	switch path {
	case pathSelect, pathReserve, pathReservations, pathPotential, pathLoads, pathBusy:
		return true
	}
	return strings.HasPrefix(path, pathReservations+"/")
}

// Serve answers one request.
func (s *Service) Serve(ctx context.Context, q Request) Answer {
	a, p := s.serve(ctx, q)
	if p == nil {
		return a
	}
	no := Answer{Status: p.Status, Body: p.JSON(), Reason: p.Reason}
	if q.Path == pathBusy { // the frontend's
		no.Body = p.Text()
	}
	if p.Reason == edge.Method {
		no.Allow = a.Allow
	}
	return no
}

func (s *Service) serve(ctx context.Context, q Request) (Answer, *edge.Problem) {
	if len(q.Body) > s.cfg.MaxBody {
		return Answer{}, edge.Refuse(http.StatusRequestEntityTooLarge, "body", edge.BodyTooLarge,
			"the body is larger than "+strconv.Itoa(s.cfg.MaxBody)+" bytes")
	}
	e := s.byPath[q.Path]
	if e.answer == nil {
		return s.follow(q)
	}
	if p := q.only(e.methods); p != nil {
		return Answer{Allow: strings.Join(e.methods, ", ")}, p
	}
	return e.answer(s, ctx, q)
}
