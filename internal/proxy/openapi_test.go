package proxy

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/api"
	"github.com/kvatlas/kvatlas/api/apitest"
	"github.com/kvatlas/kvatlas/query/selection"
)

// document is read once: TestForms' and TestRoutes' exchanges are compared with it.
var document = sync.OnceValues(func() (*apitest.Document, error) { return apitest.Read(api.Router()) })

// checkExchange compares a request and its answer with the document, if the
// route is one that the router reads.
func checkExchange(t testing.TB, x apitest.Exchange) {
	t.Helper()
	d, err := document()
	if err != nil {
		t.Fatal(err)
	}
	if x.Path, _, _ = strings.Cut(x.Path, "?"); !slices.Contains(d.Routes(), x.Method+" "+x.Path) {
		return
	}
	if err := d.Check(x); err != nil {
		t.Errorf("the answer is not as documented: %v\nrequest %.500s\nanswer %.500s", err, x.Request, x.Answer)
	}
}

// checkPost is checkExchange for what [lab.post] returns.
func checkPost(t testing.TB, path, body string, status int, data string, header http.Header) {
	t.Helper()
	checkExchange(t, apitest.Exchange{Method: http.MethodPost, Path: path, RequestType: "application/json", Request: []byte(body),
		Status: status, AnswerType: header.Get("Content-Type"), Answer: []byte(data)})
}

func TestTheDocumentHasEveryRouteAndNoOther(t *testing.T) {
	d, err := document()
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t, setup{})
	served := selection.Routes()
	for path := range l.proxy.own {
		served = append(served, "GET "+path)
	}
	for _, path := range generating() {
		served = append(served, "POST "+path)
	}
	slices.Sort(served)
	if documented := d.Routes(); !slices.Equal(served, documented) {
		t.Errorf("served %q\ndocumented %q", served, documented)
	}
	for path := range l.proxy.own {
		for method, want := range map[string]int{"GET": 200, "HEAD": 200, "POST": 405, "DELETE": 405} {
			req, err := http.NewRequestWithContext(t.Context(), method, l.front.URL+path, nil)
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
