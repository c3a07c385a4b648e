package query

import (
	"encoding/json"
	"slices"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/shares"
)

// explainShares is Explain by what shares know together. They are asked with this program's
// token, which sees all groups: so a tenant's question names its own, and what is told of
// others is left out here.
func (s *Server) explainShares(v *view, r *findRequest, body []byte) ([]byte, *edge.Problem) {
	if v.tenant != nil {
		if r.has&fieldGroup != 0 && string(r.group) != *v.tenant {
			return nil, edge.Refuse(fasthttp.StatusNotFound, "group", edge.UnknownGroup, "nobody has published blocks of this group")
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(body, &fields); err != nil { // it was parsed
			return nil, edge.Failed(err)
		}
		fields["group"] = edge.JSON(*v.tenant)
		body = edge.JSON(fields)
	}
	all, as, no := s.askShares(v, pathExplain, true, "", func() string { return string(r.model) }, func(req *fasthttp.Request) {
		req.Header.SetMethod(fasthttp.MethodPost)
		req.Header.SetContentType(edge.TypeJSON)
		req.SetBody(body)
		s.deps.Shares.AsOwn(req)
	})
	if no != nil {
		return nil, no
	}
	if as != nil {
		return nil, problemOf(as)
	}
	if err := all.mute(v.tenant); err != nil {
		return nil, senseless(err)
	}
	answer, err := json.Marshal(all)
	if err != nil {
		return nil, senseless(err)
	}
	return append(answer, '\n'), nil
}

// problemOf returns the refusal that a share answered.
func problemOf(r *shares.Reply) *edge.Problem {
	var refusal struct{ Error edge.Problem }
	if err := json.Unmarshal(r.Body, &refusal); err != nil {
		return senseless(err)
	}
	refusal.Error.Status = r.Status
	return &refusal.Error
}

// mute takes hashes out of an explanation, and for a tenant the other groups of the model.
func (a *unionAnswer) mute(tenant *string) error {
	var asked askedFor
	if err := json.Unmarshal(a.Asked, &asked); err != nil && a.Asked != nil {
		return err //nolint:wrapcheck // it is not told whose
	}
	asked.Seed = ""
	a.Asked = edge.JSON(asked)
	for i := range a.Spaces {
		for j, raw := range a.Spaces[i].Ranks {
			var r explainedRank
			if err := json.Unmarshal(raw, &r); err != nil {
				return err //nolint:wrapcheck // as above
			}
			if r.Missing != nil {
				r.Missing.Local, r.Missing.Sequence = "", ""
			}
			a.Spaces[i].Ranks[j] = edge.JSON(r)
		}
	}
	if tenant != nil {
		a.Others = slices.DeleteFunc(a.Others, func(raw json.RawMessage) bool {
			var o otherSpace
			return json.Unmarshal(raw, &o) != nil || o.Group != *tenant
		})
	}
	return nil
}
