package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	document "github.com/kvatlas/kvatlas/api"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// Console answers what its pages ask: it is edge.Pages. Its methods are safe for
// concurrent use.
type Console struct {
	cfg    Config
	files  map[string]*file
	nodes  *nodes
	events *hub

	answers *places
}

var _ edge.Pages = (*Console)(nil)

// New returns a Console. It ends with Close.
func New(cfg Config) (*Console, error) {
	if cfg.Readers <= 0 {
		cfg.Readers = defaultReaders
	}
	files, err := readFiles()
	if err != nil {
		return nil, err
	}
	cfg.started = time.Now()
	return &Console{cfg: cfg, files: files, nodes: newNodes(), events: newHub(&cfg), answers: newPlaces(maxAnswers)}, nil
}

// Close ends the streams of all readers; there are no new ones.
func (c *Console) Close() { c.events.close() }

// Handler returns the pages for a mux that they stand at / of, or below a path that ends
// with a slash. Without access everybody may ask.
func (c *Console) Handler(access *secure.Access, below string) http.Handler {
	return edge.ServePages(c, access, below)
}

// Has reports whether a path, below that of the pages, is theirs.
func (c *Console) Has(path string) bool {
	_, file := c.files[path]
	return file || strings.HasPrefix(path, "api/")
}

// api begins the paths of what is not a file.
const api = "api/"

const pathDocument = "openapi.yaml"

// Needs implements edge.Pages.
func (c *Console) Needs(path string) secure.Role {
	if strings.HasPrefix(path, api) && path != api+pathDocument {
		return secure.Reader
	}
	return secure.Anybody
}

// endpoint is one of the pages' own.
type endpoint struct {
	path   string // below api/; what ends with a slash has one more segment
	post   bool
	args   []string // that the URL may have
	answer func(*Console, *request) (*edge.Reply, *edge.Problem)
}

// endpoints returns all of them. The documents of package api have them; a test compares.
func endpoints() []endpoint {
	return []endpoint{
		{path: "events", args: []string{"metric"}, answer: (*Console).follow},
		{path: "worker", args: []string{"id"}, answer: (*Console).worker},
		{path: "prefixes", args: []string{"model", "block_size", "group", "node", "limit"}, answer: (*Console).prefixes},
		{path: "prefixes/holders", args: []string{"node", "limit"}, answer: (*Console).holders},
		{path: "find", post: true, answer: (*Console).find},
		{path: "decisions", args: []string{"model_name", "routing_group", "request_id", "worker_id", "kept", "limit"}, answer: (*Console).decisions},
		{path: "decisions/", answer: (*Console).decision},
		{path: "streams", answer: (*Console).streams},
		{path: "settings", answer: (*Console).settings},
		{path: pathDocument, answer: func(*Console, *request) (*edge.Reply, *edge.Problem) {
			return &edge.Reply{Status: http.StatusOK, Type: "application/yaml", Body: []byte(document.Console())}, nil
		}},
	}
}

// request is one that a route answers.
type request struct {
	*edge.Ask
	args url.Values
	rest string // of the path
}

// sees reports whether the caller may know of a routing group.
func (r *request) sees(group string) bool { return r.Tenant == nil || *r.Tenant == group }

// Answer implements edge.Pages.
func (c *Console) Answer(a *edge.Ask) *edge.Reply {
	rest, ok := strings.CutPrefix(a.Path, api)
	if !ok {
		return c.file(a)
	}
	for _, r := range endpoints() {
		req := &request{Ask: a}
		if strings.HasSuffix(r.path, "/") {
			if req.rest, ok = strings.CutPrefix(rest, r.path); !ok || req.rest == "" {
				continue
			}
		} else if rest != r.path {
			continue
		}
		if no := method(a.Method, r.post); no != nil {
			return no
		}
		var no *edge.Problem
		if req.args, no = arguments(a.Query, r.args); no != nil {
			return edge.ReplyProblem(no)
		}
		if a.Method == http.MethodHead && r.path == "events" {
			return &edge.Reply{Status: http.StatusOK, Type: typeEvents}
		}
		if why := c.answers.take(a.Tenant); why != "" {
			c.events.m.answers.Inc()
			return edge.ReplyProblem(edge.Refuse(http.StatusServiceUnavailable, "request", edge.Busy, "the console answers no request more at once: "+why))
		}
		defer c.answers.give(a.Tenant) //nolint:revive // it is the only one: what follows returns
		answer, no := r.answer(c, req)
		if no != nil {
			return edge.ReplyProblem(no)
		}
		return answer
	}
	return edge.ReplyProblem(edge.Refuse(http.StatusNotFound, "path", edge.UnknownRoute, "the console has no such route"))
}

// maxAnswers bounds the answers that are made at once: some look at the whole fleet.
const maxAnswers = 8

// method returns the answer to a method that a path does not take; nil if it does.
func method(m string, post bool) *edge.Reply {
	allow := "GET, HEAD"
	if post {
		allow = "POST"
	}
	if post && m == http.MethodPost || !post && (m == http.MethodGet || m == http.MethodHead) {
		return nil
	}
	no := edge.ReplyProblem(edge.NotMethod(allow))
	no.Allow = allow
	return no
}

// arguments reads a URL's: each once, and none that the route does not know.
func arguments(query string, known []string) (url.Values, *edge.Problem) {
	args, err := url.ParseQuery(query)
	if err != nil {
		return nil, edge.Bad("url", edge.MalformedEncoding, "the URL's arguments are malformed")
	}
	for name, values := range args {
		switch {
		case !slices.Contains(known, name):
			return nil, edge.Bad("url", edge.UnknownArgument, "this route knows these arguments only: "+strings.Join(known, ", "))
		case len(values) > 1:
			return nil, edge.Bad(name, edge.DuplicateField, "the argument is given twice")
		}
	}
	return args, nil
}
