package proxy

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/internal/program/edge"
)

// pathModel stands for the routes of single models among the router's own.
const pathModel = "/v1/models/{model}"

// ownPath returns the key of the router's own route that a path may be of. Names of
// models have slashes.
func ownPath(path string) string {
	if name, ok := strings.CutPrefix(path, "/v1/models/"); ok && name != "" {
		return pathModel
	}
	if id, ok := strings.CutPrefix(path, pathDecisions+"/"); ok && id != "" && !strings.Contains(id, "/") {
		return pathDecision
	}
	return path
}

// modelObject is a name that requests may give, as OpenAI's API describes models.
type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int    `json:"created"`
	Owner   string `json:"owned_by"`
}

func newModelObject(name string) modelObject { return modelObject{name, "model", 0, "kvatlas"} }

// models answers GET /v1/models with the names that requests may give.
func (p *Proxy) models(w http.ResponseWriter, r *http.Request) {
	list := []modelObject{}
	names := p.names(tenantOf(r))
	if len(names) == 0 {
		if no := p.unlessUnknown(nil); no != nil {
			p.refuse(w, r, no)
			return
		}
	}
	for _, name := range names {
		list = append(list, newModelObject(name))
	}
	writeJSON(w, http.StatusOK, edge.JSON(map[string]any{"object": "list", "data": list}))
}

// oneModel answers GET /v1/models/{model}.
func (p *Proxy) oneModel(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/v1/models/")
	if !slices.Contains(p.names(tenantOf(r)), name) {
		p.refuse(w, r, p.notServed(name))
		return
	}
	writeJSON(w, http.StatusOK, edge.JSON(newModelObject(name)))
}

// parse reads what of the body the router looks at. An alias is replaced there by the
// name that it means, which engines know. err says what is wrong with the body as JSON.
func (p *Proxy) parse(r *http.Request, q *call, free bool) (err error, no *refusal) { //nolint:revive,staticcheck // no is the one that ends the request
	var at span
	if kind := r.Header.Get("Content-Type"); free && isForm(kind) {
		var model []byte
		if model, at, err = formField(kind, q.data, "model"); err != nil {
			return nil, refuse(http.StatusBadRequest, "malformed_form", "the body: "+err.Error())
		}
		q.model = string(model)
	} else {
		q.body, err = parseBody(q.data, p.cfg.MaxPrompt)
		at = q.modelAt
	}
	name := p.fleet.Alias(q.model)
	if q.model == "" || name == q.model {
		return err, nil
	}
	text := []byte(name)
	if q.object {
		text = appendJSON(nil, name)
	}
	if no = p.replace(r, q, at, text); no != nil {
		return nil, no
	}
	if q.model = name; q.object {
		q.body, err = parseBody(q.data, p.cfg.MaxPrompt) // its parts are those of the new text
	}
	return err, nil
}

// span is a part of a body.
type span struct{ begin, end int }

// replace puts a text in the place of a part of the body.
func (p *Proxy) replace(r *http.Request, q *call, at span, text []byte) *refusal {
	changed := p.spool.Open(q.client(r), func() {}, false) // it waits for nobody
	n := int64(len(q.data) - (at.end - at.begin) + len(text))
	whole := io.MultiReader(bytes.NewReader(q.data[:at.begin]), bytes.NewReader(text), bytes.NewReader(q.data[at.end:]))
	if err := changed.Fill(whole, n, n); err != nil {
		changed.Release()
		return p.notRead(err)
	}
	q.spooled.Release()
	q.spooled, q.data = changed, changed.Bytes()
	return nil
}
