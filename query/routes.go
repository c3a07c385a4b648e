package query

import (
	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// route is one of the server's: what it answers, and whom.
type route struct {
	path   string
	name   string // label of metrics
	post   bool   // POST; else GET and HEAD
	needs  secure.Role
	fleet  bool // is about more than one tenant may see
	held   bool // answers from what is held where
	union  bool // of shares, too
	plain  bool // errors are {"error":"text"}, as in the APIs that it is from
	answer func(*Server, *fasthttp.RequestCtx, *view) *edge.Problem
}

const pathExplain = "/v1/explain"

// routes returns all routes. api/openapi.yaml describes them; a test compares.
func routes() []route {
	return []route{
		{path: "/v1/find_matches", name: "find_matches", held: true, union: true, post: true, needs: secure.Reader, answer: (*Server).answerFind},
		{path: "/v1/find_matches/batch", name: "find_matches_batch", held: true, post: true, needs: secure.Reader, answer: (*Server).answerBatch},
		{path: pathExplain, name: "explain", held: true, union: true, post: true, needs: secure.Reader, answer: (*Server).answerExplain},
		{path: "/v1/spaces", name: "spaces", held: true, needs: secure.Reader, answer: (*Server).answerSpaces},
		{path: "/v1/ranks", name: "ranks", held: true, needs: secure.Reader, answer: (*Server).answerRanks},
		{path: "/v1/workers", name: "workers", held: true, union: true, needs: secure.Reader, answer: (*Server).answerWorkers},
		{path: "/v1/dump", name: "dump", held: true, needs: secure.Operator, answer: (*Server).answerDump},
		{path: "/query", name: "query", held: true, post: true, needs: secure.Reader, plain: true, answer: (*Server).answerQuery},
		{path: "/query_by_hash", name: "query_by_hash", held: true, post: true, needs: secure.Reader, plain: true, answer: (*Server).answerQueryByHash},
		{path: "/register", name: "register", post: true, needs: secure.Operator, plain: true, answer: (*Server).answerRegister},
		{path: "/unregister", name: "unregister", post: true, needs: secure.Operator, plain: true, answer: (*Server).answerUnregister},
		{path: "/drain", name: "drain", post: true, needs: secure.Operator, fleet: true, plain: true, answer: (*Server).answerDrain},
		{path: "/resume", name: "resume", post: true, needs: secure.Operator, fleet: true, plain: true, answer: (*Server).answerResume},
		{path: "/workers", name: "list_workers", needs: secure.Reader, plain: true, answer: (*Server).answerListWorkers},
		{path: "/health", name: "health", needs: secure.Anybody, answer: (*Server).answerAbout},
		{path: "/livez", name: "livez", needs: secure.Anybody, answer: (*Server).answerAbout},
		{path: "/readyz", name: "readyz", needs: secure.Anybody, answer: (*Server).answerAbout},
		{path: "/metrics", name: "metrics", needs: secure.Reader, fleet: true, answer: (*Server).answerAbout},
		{path: "/version", name: "version", needs: secure.Anybody, answer: (*Server).answerAbout},
		{path: "/openapi.yaml", name: "openapi", needs: secure.Anybody, answer: (*Server).answerAbout},
		{path: "/v1/openapi.yaml", name: "openapi", needs: secure.Anybody, answer: (*Server).answerAbout}, // at a port with a document of its own
	}
}

// needsRegistry reports whether the route is there with a registry only.
func (r *route) needsRegistry() bool {
	switch r.name {
	case "register", "unregister", "drain", "resume", "list_workers":
		return true
	}
	return false
}

// method returns the methods that the route takes, as in an Allow header.
func (r *route) method() string {
	if r.post {
		return "POST"
	}
	return "GET, HEAD"
}

// takes reports whether the route takes the request's method.
func (r *route) takes(ctx *fasthttp.RequestCtx) bool {
	if r.post {
		return ctx.IsPost()
	}
	return ctx.IsGet() || ctx.IsHead()
}

// table is the routes by path.
type table struct {
	all    []route
	byPath map[string]int
}

func newTable() *table {
	t := &table{all: routes(), byPath: make(map[string]int)}
	for i := range t.all {
		t.byPath[t.all[i].path] = i
	}
	return t
}

// none is the index, beside those of the routes, of what is no route or not
// HTTP at all.
func (t *table) none() int { return len(t.all) }

// of returns the route of a request. What is a path and no more, as most are, is not taken apart.
func (t *table) of(ctx *fasthttp.RequestCtx) int {
	if i, ok := t.byPath[string(ctx.Request.Header.RequestURI())]; ok {
		return i
	}
	return t.find(ctx.URI().PathOriginal())
}

// find returns the route of a path, taken as the client wrote it: no decoding
// and no "..", so that a proxy in front sees the same path.
func (t *table) find(path []byte) int {
	if i, ok := t.byPath[string(path)]; ok {
		return i
	}
	return t.none()
}

func (t *table) name(i int) string {
	if i == t.none() {
		return "none"
	}
	return t.all[i].name
}
