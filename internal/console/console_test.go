package console

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	document "github.com/kvatlas/kvatlas/api"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/testing/apitest"
	"github.com/kvatlas/kvatlas/route/account"
)

var documented = apitest.Once(document.Console)

// filled returns a fixture of which each group has something in each route.
func filled(t *testing.T) *fixture {
	f := newFixture(t, nil)
	f.store(ownSpace, ownWorker, 11, 12, 13)
	f.store(otherSpace, otherWorker, 21, 22)
	f.chat(ownSpace, "own", []uint64{11, 12, 13, 14}, 12)
	f.chat(otherSpace, "hidden-request", []uint64{21, 22}, 8)
	return f
}

// first returns the root's first child in the space.
func (f *fixture) first(sp event.Space) prefix {
	f.t.Helper()
	var a prefixes
	if err := json.Unmarshal(f.get("api/prefixes?model="+sp.Model).Body, &a); err != nil || len(a.Children) == 0 {
		f.t.Fatalf("%v %+v", err, a)
	}
	return a.Children[0]
}

// A tenant's token sees its own group in each route, and nothing that is another's; who may
// see all does see that.
func TestATenantSeesItsGroupAndNothingElse(t *testing.T) {
	f := filled(t)
	acme := "acme"
	all := f.cfg.Decisions.Find(account.Query{})
	var otherDecision, ownDecision string
	for _, d := range all {
		if d.Model == otherSpace.Model {
			otherDecision = d.ID
		} else {
			ownDecision = d.ID
		}
	}
	otherNode, ownNode := f.first(otherSpace).ID, f.first(ownSpace).ID
	asked := map[string]bool{}
	for _, c := range []struct {
		route, path, body string
		own               string // what a tenant must see of its own; "": nothing
		status            int    // for the tenant
		seen              string // what who sees all sees of the other's
	}{
		{"worker", "api/worker?id=5", "", `"worker":"5"`, 200, ""},
		{"worker", "api/worker?id=7770001", "", "", 404, hidden},
		{"prefixes", "api/prefixes", "", `"holders":1`, 200, hidden},
		{"prefixes", "api/prefixes?model=hidden-model", "", "", 404, hidden},
		{"prefixes", "api/prefixes?group=hidden-group", "", "", 404, hidden},
		{"prefixes", "api/prefixes?node=" + ownNode, "", `"model":"m"`, 200, ""},
		{"prefixes", "api/prefixes?node=" + otherNode, "", "", 404, hidden},
		{"prefixes/holders", "api/prefixes/holders?node=" + ownNode, "", `"worker":"5"`, 200, ""},
		{"prefixes/holders", "api/prefixes/holders?node=" + otherNode, "", "", 404, hidden},
		{"find", "api/find", `{"model":"m","block_hashes":[11]}`, `"worker_id":"5"`, 200, ""},
		{"find", "api/find", `{"model":"hidden-model","block_hashes":[21]}`, "", 404, hidden},
		{"decisions", "api/decisions", "", ownDecision, 200, hidden},
		{"decisions", "api/decisions?routing_group=hidden-group", "", "", 200, hidden},
		{"decisions/", "api/decisions/" + ownDecision, "", `"candidates"`, 200, ""},
		{"decisions/", "api/decisions/" + otherDecision, "", "", 404, hidden},
		{"streams", "api/streams", "", `"transports":{"none":1}`, 200, `"none":2`},
		{"settings", "api/settings", "", `"settings":null`, 200, hidden},
		{pathDocument, "api/openapi.yaml", "", "", 200, ""},
		{"events", "api/events", "", `"worker":"5"`, 200, hidden},
	} {
		asked[c.route] = true
		method := "GET"
		if c.body != "" {
			method = "POST"
		}
		text := func(tenant *string, role secure.Role) (int, string) {
			a := f.ask(tenant, role, method, c.path, c.body)
			if a.Stream == nil {
				return a.Status, string(a.Body)
			}
			defer a.Stream.Close()
			return a.Status, strings.Join(frames(t, a.Stream, 2), "")
		}
		status, got := text(&acme, secure.Reader)
		asked := strings.Replace(c.path+c.body, "hidden-model", "", 1) // an error may name what was asked for
		if status != c.status || !strings.Contains(got, c.own) {
			t.Errorf("%s %s: %d %.300s, want %d with %q", c.path, c.body, status, got, c.status, c.own)
		}
		if got = strings.ReplaceAll(got, asked, ""); status == 200 && c.route != pathDocument && strings.Contains(got, hidden) || strings.Contains(got, `"7770001`) {
			t.Errorf("%s %s: a tenant sees %.500s", c.path, c.body, got)
		}
		if status, got = text(nil, secure.Operator); status != 200 || !strings.Contains(got, c.seen) {
			t.Errorf("%s %s: %d %.300s for who may see all, want %q", c.path, c.body, status, got, c.seen)
		}
		if strings.Contains(got, "password") {
			t.Errorf("%s: a secret is shown: %s", c.path, got)
		}
	}
	for _, e := range endpoints() {
		if !asked[e.path] {
			t.Errorf("what a tenant sees of %s is not asked", e.path)
		}
	}
}

// Every answer is as the document has it, and the document has no other route.
func TestTheDocumentIsOfTheConsole(t *testing.T) {
	f := filled(t)
	d := documented(t)
	node := f.first(ownSpace).ID
	var served []string
	for _, e := range endpoints() {
		method := "GET"
		if e.post {
			method = "POST"
		}
		path := "/api/" + e.path
		if strings.HasSuffix(path, "/") {
			path += "{id}"
		}
		served = append(served, method+" "+path)
	}
	slices.Sort(served)
	if routes := d.Routes(); !slices.Equal(served, routes) {
		t.Errorf("served %q\ndocumented %q", served, routes)
	}
	id := f.cfg.Decisions.Find(account.Query{})[0].ID
	for _, path := range []string{
		"api/worker?id=5", "api/worker?id=9", "api/worker", "api/prefixes", "api/prefixes?limit=0", "api/prefixes?node=" + node, "api/prefixes?node=x", "api/prefixes?x=1",
		"api/prefixes/holders?node=" + node, "api/prefixes/holders", "api/decisions", "api/decisions/" + id, "api/decisions/none", "api/decisions?kept=no",
		"api/streams", "api/settings", "api/openapi.yaml", "api/events?metric=no",
	} {
		a := f.get(path)
		bare, _, _ := strings.Cut(path, "?")
		d.Compare(t, apitest.Exchange{Method: "GET", Path: "/" + bare, Status: a.Status, AnswerType: a.Type, Answer: a.Body})
	}
	for _, body := range []string{
		`{"model":"m","token_ids":[1,2,3,4]}`, `{"model":"m","block_hashes":[11,"12"]}`, `{"model":"m","text":"x"}`, `{"model":"m"}`, `{`, `{"model":"none","token_ids":[1]}`,
	} {
		a := f.ask(nil, secure.Operator, "POST", "api/find", body)
		d.Compare(t, apitest.Exchange{Method: "POST", Path: "/api/find", Request: []byte(body), Status: a.Status, AnswerType: a.Type, Answer: a.Body})
	}
}

// What makes no decisions, as kvindexer, is told from what has made none yet.
func TestNoDecisionsAreMadeHere(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Decisions = nil })
	a := f.get("api/decisions")
	if strings.TrimSpace(string(a.Body)) != `{"decisions":null}` {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	documented(t).Compare(t, apitest.Exchange{Method: "GET", Path: "/api/decisions", Status: a.Status, AnswerType: a.Type, Answer: a.Body})
}

// Nothing that is asked for in another way than a route has it is answered, whatever the
// path hides.
func TestHostileRequests(t *testing.T) {
	f := filled(t)
	for _, c := range []struct {
		method, path, body string
		want               int
	}{
		{"GET", "", "", 200}, {"HEAD", "", "", 200}, {"GET", "index.html", "", 200}, {"POST", "", "", 405}, {"DELETE", "index.html", "", 405},
		{"HEAD", "api/events", "", 200}, {"POST", "api/events", "", 405}, {"POST", "api/prefixes", "{}", 405}, {"GET", "api/find", "", 405}, {"HEAD", "api/find", "", 405},
		{"TRACE", "api/streams", "", 405}, {"HEAD", "api/streams", "", 200},
		{"GET", "api", "", 404}, {"GET", "api/", "", 404}, {"GET", "api/none", "", 404}, {"GET", "api/decisions/", "", 404}, {"GET", "api/streams/", "", 404}, {"GET", "api//streams", "", 404},
		{"GET", "../index.html", "", 404}, {"GET", "static/index.html", "", 404}, {"GET", "./index.html", "", 404}, {"GET", "%2e%2e/index.html", "", 404},
		{"GET", "api/../index.html", "", 404}, {"GET", "api/decisions/../settings", "", 404}, {"GET", "api/%73treams", "", 404}, {"GET", "index.html/", "", 404}, {"GET", "/index.html", "", 404},
		{"GET", "api/streams?x=1", "", 400}, {"GET", "api/streams?%zz", "", 400}, {"GET", "api/prefixes?limit=1&limit=2", "", 400},
		{"GET", "api/prefixes?limit=1001", "", 400}, {"GET", "api/prefixes?limit=-1", "", 400}, {"GET", "api/prefixes?limit=99999999999999999999", "", 400}, {"GET", "api/prefixes?limit=1e3", "", 400},
		{"GET", "api/prefixes?block_size=0", "", 400}, {"GET", "api/prefixes?node=" + strings.Repeat("f", 5000), "", 404},
		{"GET", "api/decisions?limit=1001", "", 400}, {"GET", "api/decisions?worker_id=-1", "", 400}, {"GET", "api/worker?id=18446744073709551616", "", 400},
		{"POST", "api/find", "[]", 400}, {"POST", "api/find", "", 400}, {"POST", "api/find", `{"model":"m","token_ids":[1],"text":"x"}`, 400},
		{"POST", "api/find", `{"model":"m","token_ids":"x"}`, 400}, {"POST", "api/find", `{"model":"m","block_hashes":{"a":1}}`, 400}, {"POST", "api/find", `{"model":"m","token_ids":[-1]}`, 400},
	} {
		a := f.ask(nil, secure.Operator, c.method, c.path, c.body)
		if a.Status != c.want || c.want >= 400 && !strings.HasPrefix(string(a.Body), `{"error":{"field":`) || (c.want == 405) != (a.Allow != "") {
			t.Errorf("%s %.60s %s: %d %.200s %q, want %d", c.method, c.path, c.body, a.Status, a.Body, a.Allow, c.want)
		}
		if a.Stream != nil {
			t.Errorf("%s %s is a stream", c.method, c.path)
		}
	}
	page := f.get("")
	if again := f.Answer(askKnown("", page.Tag)); again.Status != http.StatusNotModified || len(again.Body) != 0 {
		t.Errorf("%d %s", again.Status, again.Body)
	}
	headers := map[string]string{}
	page.Headers(func(name, value string) { headers[name] = value })
	if csp := headers["Content-Security-Policy"]; !strings.HasPrefix(csp, "default-src 'none'; script-src 'self'; style-src 'self';") || strings.Contains(csp, "unsafe") ||
		headers["X-Content-Type-Options"] != "nosniff" || headers["Referrer-Policy"] != "no-referrer" || headers["ETag"] == "" {
		t.Errorf("%v", headers)
	}
	if a := f.get("api/streams"); a.Tag != "" {
		t.Error("data may be kept")
	}
}
