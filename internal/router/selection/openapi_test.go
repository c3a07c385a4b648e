package selection

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/api"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/testing/apitest"
)

// document is read once: every exchange of the tests is compared with it.
var document = apitest.Once(api.Router)

// checkExchange compares a request and its answer with the document. Of routes
// that nobody has, and of other methods, the document says nothing.
func checkExchange(t testing.TB, method, path, body string, a Answer) {
	t.Helper()
	d := document(t)
	if a.Status == http.StatusMethodNotAllowed || a.Reason == edge.UnknownRoute {
		return
	}
	x := apitest.Exchange{Method: method, Path: path, Request: []byte(body), Status: a.Status, AnswerType: "application/json", Answer: a.Body}
	d.Compare(t, x)
}

// Every route is in the document, with its methods and no other.
func TestTheDocumentHasEveryRoute(t *testing.T) {
	d := document(t)
	var documented []string
	for _, r := range d.Routes() {
		if _, path, _ := strings.Cut(r, " "); Owns(path) {
			documented = append(documented, r)
		}
	}
	if served := Routes(); !slices.Equal(served, documented) {
		t.Errorf("served %q\ndocumented %q", served, documented)
	}
	s := service(newModel(t, "m", ""))
	for _, e := range endpoints() {
		if !Owns(e.path) {
			t.Errorf("%s is not owned", e.path)
		}
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
			path := strings.Replace(e.path, "{selection_id}", "a", 1)
			a := s.Serve(t.Context(), Request{Method: method, Path: path, ContentType: "application/json"})
			if refused := a.Status == http.StatusMethodNotAllowed; a.Reason == edge.UnknownRoute || refused == slices.Contains(documented, method+" "+e.path) {
				t.Errorf("%s %s: %d %s", method, path, a.Status, a.Body)
			}
		}
	}
}

// TestTheDocumentNamesEveryReason keeps the list of reasons complete.
func TestTheDocumentNamesEveryReason(t *testing.T) {
	for _, reason := range []string{
		edge.MalformedJSON, edge.UnknownField, edge.DuplicateField, edge.WrongType, edge.Negative, edge.NotInteger, edge.OutOfRange, edge.TooMany, edge.Missing,
		edge.Conflict, edge.UnknownModel, edge.UnknownGroup, edge.BlockSize, edge.UnknownArgument, edge.UnknownRoute, edge.Method, edge.MediaType, edge.BodyTooLarge,
		edge.UnknownSelection, edge.DuplicateID, edge.UnknownWorker, edge.Overloaded, edge.NoWorker, edge.Cancelled, edge.Internal,
	} {
		if !strings.Contains(api.Router(), "- "+reason+"\n") {
			t.Errorf("the document does not have the reason %s", reason)
		}
	}
}

// TestADepartureFromTheDocumentIsSeen keeps the comparison honest.
func TestADepartureFromTheDocumentIsSeen(t *testing.T) {
	d := document(t)
	good := apitest.Exchange{Method: "POST", Path: "/v1/reservations/a%2Fb/output", Request: []byte(`{"tokens":"3"}`),
		Status: 200, AnswerType: "application/json", Answer: []byte(`{"status":"ok"}`)}
	d.Sees(t, good, map[string]func(x *apitest.Exchange){
		"route":          func(x *apitest.Exchange) { x.Path = "/v1/reservations/a/b/output" },
		"no id":          func(x *apitest.Exchange) { x.Path = "/v1/reservations//output" },
		"method":         func(x *apitest.Exchange) { x.Method = "DELETE" },
		"status":         func(x *apitest.Exchange) { x.Status = 201 },
		"error's form":   func(x *apitest.Exchange) { x.Status = 404 },
		"answer's field": func(x *apitest.Exchange) { x.Answer = []byte(`{"status":"ok","x":1}`) },
		"request":        func(x *apitest.Exchange) { x.Request = []byte(`{"tokens":-1}`) },
		"no request":     func(x *apitest.Exchange) { x.Request = nil },
	})
}
