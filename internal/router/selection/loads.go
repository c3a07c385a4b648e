package selection

import (
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
)

type activeLoad struct {
	Model    string  `json:"model_name"`
	Group    string  `json:"routing_group"`
	Size     uint32  `json:"block_size"`
	Worker   uint64  `json:"worker_id"`
	Rank     uint32  `json:"dp_rank"`
	Prefill  int     `json:"active_prefill_tokens"`
	Decode   float64 `json:"active_decode_blocks"`
	Requests int     `json:"active_requests"`
	Left     string  `json:"left_out,omitempty"`
}

// loads answers GET /v1/loads?model_name=…&routing_group=…. An empty list is an
// answer, as in Dynamo's services.
func (s *Service) loads(query string) (Answer, *edge.Problem) {
	args, err := url.ParseQuery(query)
	if err != nil {
		return Answer{}, edge.Bad("query", edge.UnknownArgument, "the URL's arguments are malformed")
	}
	for name := range args {
		if name != "model_name" && name != "routing_group" {
			return Answer{}, edge.Bad(name[:min(len(name), 64)], edge.UnknownArgument, "no such argument in the URL of this route")
		}
	}
	var models []Named
	if args.Has("model_name") {
		models = s.first(args.Get("model_name"))
	} else {
		for _, m := range s.cfg.Models() {
			models = append(models, Named{Model: m})
		}
	}
	out := []activeLoad{}
	for _, m := range models {
		if args.Has("routing_group") && args.Get("routing_group") != registry.GroupName(m.Group) {
			continue
		}
		for _, l := range m.Router.Loads() {
			if m.Workers != nil && !slices.Contains(m.Workers, l.Worker) {
				continue
			}
			a := activeLoad{m.Model.Model, registry.GroupName(m.Group), m.BlockSize, l.Worker, l.DPRank, l.PrefillTokens, l.DecodeBlocks, l.Requests, ""}
			if l.Left != route.Eligible {
				a.Left = l.Left.String()
			}
			out = append(out, a)
		}
	}
	return Answer{Status: http.StatusOK, Body: edge.JSON(out)}, nil
}

// first returns the models that a request may mean by a name, in the first way that there is.
func (s *Service) first(name string) []Named {
	if all := s.cfg.Named(name); len(all) > 0 {
		return all[0]
	}
	return nil
}

type thresholds struct {
	Model string `json:"model"`
	route.Thresholds
}

// busy answers GET and POST /busy_threshold, with the statuses of Dynamo's
// frontend. A POST without thresholds reads, and names any model; one with
// thresholds changes those that it has, of all groups of the model.
func (s *Service) busy(q Request) (Answer, *edge.Problem) {
	if q.Method == http.MethodGet {
		list := []thresholds{}
		for _, m := range s.cfg.Models() {
			t := m.Router.Thresholds()
			if n := len(list); t != (route.Thresholds{}) && (n == 0 || list[n-1].Model != m.Model) {
				list = append(list, thresholds{m.Model, t})
			}
		}
		return Answer{Status: http.StatusOK, Body: edge.JSON(map[string]any{"thresholds": list})}, nil
	}
	if t, _, err := mime.ParseMediaType(q.ContentType); err != nil || t != "application/json" && !strings.HasSuffix(t, "+json") {
		return Answer{}, edge.Refuse(http.StatusUnsupportedMediaType, "Content-Type", edge.MediaType,
			"send Content-Type: application/json")
	}
	var model *string
	var change route.Thresholds
	p := parse(q.Body, fields{
		"model":                                func(o *object) { v := o.text(); model = &v },
		"active_decode_blocks_threshold":       func(o *object) { v := o.float(0, 1); change.DecodeFraction = &v },
		"active_prefill_tokens_threshold":      func(o *object) { v := int(o.uint(1<<53 - 1)); change.PrefillTokens = &v },
		"active_prefill_tokens_threshold_frac": func(o *object) { v := o.float(0, maxWeight); change.PrefillFraction = &v },
	})
	switch {
	case p == nil && model == nil:
		p = edge.Bad("model", edge.Missing, "name the model")
	case p == nil && *model == "":
		return Answer{}, edge.Bad("model", edge.OutOfRange, "the name is empty")
	}
	if p != nil {
		switch p.Reason { // of the JSON's shape, not of its values or syntax
		case edge.UnknownField, edge.DuplicateField, edge.WrongType, edge.Missing, edge.Negative, edge.NotInteger:
			p.Status = http.StatusUnprocessableEntity
		}
		return Answer{}, p
	}
	now, found := route.Thresholds{}, false
	for _, m := range s.first(*model) {
		t := m.Router.Thresholds()
		if change != (route.Thresholds{}) {
			var err error
			if t, err = m.Router.SetThresholds(change); err != nil {
				return Answer{}, edge.Bad("body", edge.OutOfRange, err.Error())
			}
		}
		if !found {
			now, found = t, true
		}
	}
	if !found && change != (route.Thresholds{}) {
		return Answer{}, edge.Refuse(http.StatusNotFound, "model", edge.UnknownModel, "no worker serves this model")
	}
	return Answer{Status: http.StatusOK, Body: edge.JSON(thresholds{*model, now})}, nil
}
