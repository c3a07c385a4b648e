package proxy

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/api"
	"github.com/kvatlas/kvatlas/internal/router/selection"
	"github.com/kvatlas/kvatlas/internal/testing/apitest"
)

// document is read once: TestForms' and TestRoutes' exchanges are compared with it.
var document = apitest.Once(api.Router)

// checkExchange compares a request and its answer with the document, if the
// route is one that the router reads.
func checkExchange(t testing.TB, x apitest.Exchange) {
	t.Helper()
	d := document(t)
	if x.Path, _, _ = strings.Cut(x.Path, "?"); !slices.Contains(d.Routes(), x.Method+" "+x.Path) {
		return
	}
	d.Compare(t, x)
}

// checkPost is checkExchange for what [lab.post] returns.
func checkPost(t testing.TB, path, body string, status int, data string, header http.Header) {
	t.Helper()
	checkExchange(t, apitest.Exchange{Method: http.MethodPost, Path: path, RequestType: "application/json", Request: []byte(body),
		Status: status, AnswerType: header.Get("Content-Type"), Answer: []byte(data)})
}

func TestTheDocumentHasEveryRouteAndNoOther(t *testing.T) {
	d := document(t)
	l := newLab(t, setup{})
	served := selection.Routes()
	for path := range l.proxy.routes.own {
		served = append(served, "GET "+path)
	}
	for path := range l.proxy.routes.operates {
		served = append(served, "POST "+path)
	}
	for _, path := range generatingPaths() {
		served = append(served, "POST "+path)
	}
	slices.Sort(served)
	if status, text, _ := l.post("/v1/completions", `{"model":"`+modelName+`","prompt":[1,2,3,4,5],"max_tokens":1}`); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	named := strings.NewReplacer("{model}", modelName, "{id}", "t-1")
	l.idle() // the decision is kept
	if documented := d.Routes(); !slices.Equal(served, documented) {
		t.Errorf("served %q\ndocumented %q", served, documented)
	}
	for path := range l.proxy.routes.own {
		for method, want := range map[string]int{"GET": 200, "HEAD": 200, "POST": 405, "DELETE": 405} {
			req, err := http.NewRequestWithContext(t.Context(), method, l.front.URL+named.Replace(path), nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != want || (resp.Header.Get("Allow") != "") != (want == 405) {
				t.Errorf("%s %s: %d %v %.100s, want %d", method, path, resp.StatusCode, err, body, want)
			}
			if path == "/openapi.yaml" && method == "GET" && string(body) != api.Router() {
				t.Errorf("another document: %.100s", body)
			}
			checkExchange(t, apitest.Exchange{Method: method, Path: path, Status: resp.StatusCode, AnswerType: resp.Header.Get("Content-Type"), Answer: body})
		}
	}
}

// A router with --selection off documents the routes that it has, and no other.
func TestTheDocumentIsOfTheRouter(t *testing.T) {
	l := newLab(t, setup{proxy: func(c *Config) { c.Selection, c.PassThrough = false, false }})
	get := func(method, path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, l.front.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // only read
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	_, text := get("GET", "/openapi.yaml")
	served, err := apitest.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	d := document(t)
	want := slices.DeleteFunc(d.Routes(), func(r string) bool { return slices.Contains(selection.Routes(), r) })
	if got := served.Routes(); !slices.Equal(got, want) || len(want)+len(selection.Routes()) != len(d.Routes()) {
		t.Errorf("documented %q, want %q", got, want)
	}
	for _, r := range d.Routes() {
		method, path, _ := strings.Cut(r, " ")
		status, text := get(method, strings.Replace(path, "{selection_id}", "a", 1))
		if there := status != http.StatusNotFound || !strings.Contains(text, "unknown_route"); there == slices.Contains(selection.Routes(), r) {
			t.Errorf("%s: %d %.200s", r, status, text)
		}
	}
}
