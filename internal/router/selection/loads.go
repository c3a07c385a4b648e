package selection

import (
	"mime"
	"net/http"
	"net/url"
	"strings"

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
func (s *Service) loads(query string) (Answer, *problem) {
	args, err := url.ParseQuery(query)
	if err != nil {
		return Answer{}, bad("query", reasonArgument, "the URL's arguments are malformed")
	}
	for name := range args {
		if name != "model_name" && name != "routing_group" {
			return Answer{}, bad(name[:min(len(name), 64)], reasonArgument, "no such argument in the URL of this route")
		}
	}
	out := []activeLoad{}
	for _, m := range s.cfg.Models() {
		if args.Has("model_name") && args.Get("model_name") != m.Model ||
			args.Has("routing_group") && args.Get("routing_group") != groupName(m.Group) {
			continue
		}
		for _, l := range m.Router.Loads() {
			a := activeLoad{m.Model, groupName(m.Group), m.BlockSize, l.Worker, l.DPRank, l.PrefillTokens, l.DecodeBlocks, l.Requests, ""}
			if l.Left != route.Eligible {
				a.Left = l.Left.String()
			}
			out = append(out, a)
		}
	}
	return Answer{Status: http.StatusOK, Body: encode(out)}, nil
}

type thresholds struct {
	Model string `json:"model"`
	route.Thresholds
}

// busy answers GET and POST /busy_threshold, with the statuses of Dynamo's
// frontend. A POST without thresholds reads, and names any model; one with
// thresholds changes those that it has, of all groups of the model.
func (s *Service) busy(q Request) (Answer, *problem) {
	models := s.cfg.Models()
	if q.Method == http.MethodGet {
		list := []thresholds{}
		for i, m := range models {
			t := m.Router.Thresholds()
			if t == (route.Thresholds{}) || i > 0 && models[i-1].Model == m.Model {
				continue
			}
			list = append(list, thresholds{m.Model, t})
		}
		return Answer{Status: http.StatusOK, Body: encode(map[string]any{"thresholds": list})}, nil
	}
	if t, _, err := mime.ParseMediaType(q.ContentType); err != nil || t != "application/json" && !strings.HasSuffix(t, "+json") {
		return Answer{}, &problem{status: http.StatusUnsupportedMediaType, Field: "Content-Type", Reason: reasonMediaType,
			Message: "send Content-Type: application/json"}
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
		p = bad("model", reasonMissing, "name the model")
	case p == nil && *model == "":
		return Answer{}, bad("model", reasonRange, "the name is empty")
	}
	if p != nil {
		switch p.Reason { // of the JSON's shape, not of its values or syntax
		case reasonUnknown, reasonDuplicate, reasonType, reasonMissing, reasonNegative, reasonNotInteger:
			p.status = http.StatusUnprocessableEntity
		}
		return Answer{}, p
	}
	now, found := route.Thresholds{}, false
	for _, m := range models {
		if m.Model != *model {
			continue
		}
		t := m.Router.Thresholds()
		if change != (route.Thresholds{}) {
			var err error
			if t, err = m.Router.SetThresholds(change); err != nil {
				return Answer{}, bad("body", reasonRange, err.Error())
			}
		}
		if !found {
			now, found = t, true
		}
	}
	if !found && change != (route.Thresholds{}) {
		return Answer{}, &problem{status: http.StatusNotFound, Field: "model", Reason: reasonModel, Message: "no worker serves this model"}
	}
	return Answer{Status: http.StatusOK, Body: encode(thresholds{*model, now})}, nil
}
