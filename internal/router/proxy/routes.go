package proxy

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/router/selection"
)

// The kinds of engines whose inference routes are known.
const (
	KindOpenAI = "openai" // what all of them have
	KindVLLM   = "vllm"
	KindSGLang = "sglang"
	KindTGI    = "tgi"
)

// Kinds returns the kinds of engines that there is a list of routes for.
func Kinds() []string { return []string{KindOpenAI, KindVLLM, KindSGLang, KindTGI} }

// inference lists, by kind of engine, the routes that use a model and change nothing
// else: answers, embeddings, scores, tokens. A segment {id} stands for any one.
// Whatever is not here administers the engine,
// as far as the router can know: that is for operators.
func inference(kind string) []string {
	switch kind {
	case KindOpenAI:
		return []string{
			"POST /v1/completions", "POST /v1/chat/completions", "POST /v1/embeddings",
			"POST /v1/responses", "GET /v1/responses/{id}", "POST /v1/responses/{id}/cancel", "DELETE /v1/responses/{id}", "GET /v1/responses/{id}/input_items",
			"POST /v1/files", "GET /v1/files", "GET /v1/files/{id}", "DELETE /v1/files/{id}", "GET /v1/files/{id}/content",
			"POST /v1/batches", "GET /v1/batches", "GET /v1/batches/{id}", "POST /v1/batches/{id}/cancel",
			"POST /v1/audio/transcriptions", "POST /v1/audio/translations", "POST /v1/audio/speech",
			"POST /v1/images/generations", "POST /v1/images/edits", "POST /v1/moderations",
		}
	case KindVLLM:
		return []string{
			"POST /v1/messages", "POST /v1/messages/count_tokens", "POST /inference/v1/generate",
			"POST /tokenize", "POST /detokenize", "POST /pooling", "POST /classify",
			"POST /score", "POST /v1/score", "POST /rerank", "POST /v1/rerank", "POST /v2/rerank", "POST /v2/embed",
			"POST /invocations", "GET /ping", "POST /ping",
		}
	case KindSGLang:
		return []string{
			"POST /generate", "POST /encode", "POST /classify", "POST /v1/classify", "POST /v1/score", "POST /v1/rerank",
			"POST /v1/messages", "POST /v1/messages/count_tokens",
			"POST /tokenize", "POST /detokenize", "POST /v1/tokenize", "POST /v1/detokenize",
			"POST /api/chat", "POST /api/generate", "POST /vertex_generate", "POST /invocations",
			"POST /parse_function_call", "POST /separate_reasoning", "GET /get_model_info", "GET /model_info",
		}
	case KindTGI:
		return []string{
			"POST /generate", "POST /generate_stream", "POST /tokenize", "POST /chat_tokenize", "POST /invocations", "GET /info",
		}
	}
	return nil
}

// forms are the paths whose bodies are forms with files.
func forms() []string {
	return []string{"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits", "/v1/files"}
}

// class says what a request is to the router.
type class uint8

const (
	administration class = iota // what is not known to be anything else
	own                         // answered by the router itself
	operating                   // so, and it changes what the router goes by
	selecting                   // so, by package selection
	generating                  // for one engine, which the prompt chooses
	passing                     // for one engine
	keeping                     // for the one engine that keeps what it is about
)

// routes knows the class of each request.
type routes struct {
	own       map[string]http.HandlerFunc // by path, to GET and HEAD
	operates  map[string]http.HandlerFunc // by path, to POST
	selection bool
	exact     map[string]class    // by method and path
	methods   map[string]bool     // paths of exact
	patterns  [][]string          // method and segments of those with variable parts
	free      map[string]struct{} // paths whose bodies need not be JSON
}

// newRoutes returns the routes of engines of the kinds; what begins with a slash in
// the list, or with a method before it, is a route itself.
func newRoutes(list []string, selects, passes bool, own, operates map[string]http.HandlerFunc) (*routes, error) {
	t := &routes{own: own, operates: operates, selection: selects, exact: map[string]class{}, methods: map[string]bool{}, free: map[string]struct{}{}}
	for _, path := range forms() {
		t.free[path] = struct{}{}
	}
	var all []string
	for _, item := range list {
		if slices.Contains(Kinds(), item) {
			all = append(all, inference(item)...)
			continue
		}
		method, path, found := strings.Cut(item, " ")
		if !found {
			method, path = "", item
		}
		path = strings.TrimSpace(path)
		if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "?#%\\ ") || canonical(path) != path {
			return nil, fmt.Errorf("%q is none of %s, and no route such as /path or POST /path", item, strings.Join(Kinds(), ", "))
		}
		t.free[path] = struct{}{} // nobody has said what its bodies are
		for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			if method == "" || method == m {
				all = append(all, m+" "+path)
			}
		}
		if method != "" && !slices.Contains(all, method+" "+path) {
			return nil, fmt.Errorf("%q: the method is none of GET, POST, PUT, PATCH and DELETE", item)
		}
	}
	if !passes {
		all = nil
	}
	for _, r := range all {
		method, path, _ := strings.Cut(r, " ")
		if strings.Contains(path, "{") {
			t.patterns = append(t.patterns, append([]string{method}, strings.Split(path, "/")[1:]...))
			continue
		}
		t.exact[r], t.methods[path] = passing, true
	}
	for _, path := range generatingPaths() {
		t.exact[http.MethodPost+" "+path], t.methods[path] = generating, true
	}
	for path := range apis {
		if r := http.MethodPost + " " + path; t.methods[path] && t.exact[r] == passing {
			t.exact[r] = generating
		}
	}
	return t, nil
}

// CheckRoutes returns what is wrong with Config.Routes.
func CheckRoutes(list []string) error {
	_, err := newRoutes(list, false, true, nil, nil)
	return err
}

// generatingPaths returns the routes whose prompts are read to choose an engine.
func generatingPaths() []string { return []string{"/v1/completions", "/v1/chat/completions"} }

// of returns the class of a request whose path is canonical.
func (t *routes) of(r *http.Request) class {
	path := r.URL.Path
	switch {
	case t.own[ownPath(path)] != nil:
		return own
	case t.operates[path] != nil:
		return operating
	case t.selection && selection.Owns(path):
		return selecting
	case r.URL.RawPath != "": // a slash inside of a segment: none of the lists has that
		return administration
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if c, ok := t.exact[method+" "+path]; ok {
		if kind, _ := keptPath(path); kind != "" && method != http.MethodPost {
			return keeping // all of a kind; what is posted is new
		}
		return c
	}
	if method == http.MethodOptions && t.methods[path] {
		return passing // what a browser asks before it posts
	}
	segments := strings.Split(path, "/")[1:]
	for _, p := range t.patterns {
		if p[0] == method && fits(p[1:], segments) {
			if kind, _ := keptPath(path); kind != "" {
				return keeping
			}
			return passing
		}
	}
	return administration
}

// methodsOf returns the methods by which a path is one of inference, if it is by any.
func (t *routes) methodsOf(path string) (list []string) {
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if _, ok := t.exact[m+" "+path]; ok {
			list = append(list, m)
		}
	}
	return list
}

func fits(pattern, segments []string) bool {
	for i, p := range pattern {
		switch {
		case i == len(segments):
			return false
		case p != "{id}" && p != segments[i]:
			return false
		}
	}
	return len(pattern) == len(segments)
}

// needs says who may make a request: readers ask and generate, operators change what
// the router goes by and administer engines. Tenants get answers from their own
// group's engines; what shows or changes more than that is not for them.
func (t *routes) needs(r *http.Request) (role secure.Role, tenants bool) {
	switch path := r.URL.Path; t.of(r) {
	case own:
		switch path {
		case "/livez", "/readyz", "/health", "/version", "/openapi.yaml":
			return secure.Anybody, true
		}
		switch ownPath(path) {
		case "/v1/models", pathModel, pathDecisions, pathDecision: // of a tenant's own group
			return secure.Reader, true
		}
		return secure.Reader, false
	case selecting:
		if path == "/v1/select" || path == "/v1/potential_loads" || r.Method == http.MethodGet || r.Method == http.MethodHead {
			return secure.Reader, false
		}
	case generating, passing, keeping:
		return secure.Reader, true
	case administration, operating:
	}
	return secure.Operator, false
}
