package admin

import (
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/api"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/testing/apitest"
)

// document is read once: every exchange of the tests is compared with it.
var document = apitest.Once(api.Admin)

// checkExchange compares a request and its answer with the document. Of other
// methods it says nothing.
func checkExchange(t testing.TB, x apitest.Exchange) {
	t.Helper()
	d := document(t)
	if x.Path, _, _ = strings.Cut(x.Path, "?"); x.Status == 405 {
		return
	}
	d.Compare(t, x)
}

func TestTheDocumentHasEveryRouteAndNoOther(t *testing.T) {
	d := document(t)
	var served []string
	for _, r := range routes() {
		served = append(served, r.method+" "+r.path)
	}
	slices.Sort(served)
	documented := d.Routes()
	if !slices.Equal(served, documented) {
		t.Errorf("served %q\ndocumented %q", served, documented)
	}
	s := start(t, Settings{Listen: "127.0.0.1:0"}, secure.Settings{})
	if status, text := s.do("GET", "/openapi.yaml", "", ""); status != 200 || text != api.Admin() {
		t.Errorf("%d %.100s", status, text)
	}
	for _, r := range routes() {
		for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
			if method == "GET" && (strings.HasSuffix(r.path, "/profile") || strings.HasSuffix(r.path, "/trace")) {
				continue // TestThePortShowsAndChanges asks: they take their time
			}
			status, _ := s.do(method, strings.Replace(r.path, "{profile}", "heap", 1), "", "")
			if taken := status != 405 && status != 404; taken != slices.Contains(documented, method+" "+r.path) {
				t.Errorf("%s %s: %d", method, r.path, status)
			}
		}
	}
}

// TestADepartureFromTheDocumentIsSeen keeps the comparison honest.
func TestADepartureFromTheDocumentIsSeen(t *testing.T) {
	d := document(t)
	good := apitest.Exchange{Method: "PUT", Path: "/log_level", Request: []byte(`{"level":"info"}`),
		Status: 200, AnswerType: "application/json", Answer: []byte(`{"level":"INFO"}`)}
	d.Sees(t, good, map[string]func(x *apitest.Exchange){
		"route":          func(x *apitest.Exchange) { x.Path = "/levels" },
		"method":         func(x *apitest.Exchange) { x.Method = "POST" },
		"error's form":   func(x *apitest.Exchange) { x.Status = 400 },
		"type":           func(x *apitest.Exchange) { x.AnswerType = "text/plain" },
		"answer's field": func(x *apitest.Exchange) { x.Answer = []byte(`{"level":"INFO","x":1}`) },
		"request":        func(x *apitest.Exchange) { x.Request = []byte(`{"level":1}`) },
	})
}
