package query

import (
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/api"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/testing/apitest"
)

// document is read once: every exchange of the tests is compared with it.
var document = apitest.Once(api.OpenAPI)

// largestChecked bounds the bodies that are compared; an array of a million
// elements says no more than a short one.
const largestChecked = 64 << 10

// checkExchange compares a request and its answer with the document.
func checkExchange(t testing.TB, x apitest.Exchange) {
	t.Helper()
	d := document(t)
	if !slices.Contains(d.Routes(), x.Method+" "+x.Path) || len(x.Request) > largestChecked || len(x.Answer) > largestChecked {
		return // of unknown routes and methods the document says nothing
	}
	d.Compare(t, x)
}

func TestTheDocumentHasEveryRouteAndNoOther(t *testing.T) {
	d := document(t)
	var served []string
	for _, r := range routes() {
		method := "GET "
		if r.post {
			method = "POST "
		}
		served = append(served, method+r.path)
	}
	slices.Sort(served)
	if documented := d.Routes(); !slices.Equal(served, documented) {
		t.Errorf("served %q\ndocumented %q", served, documented)
	}
	s := serveRegistry(t, twoSpaces(), new(fakeRegistry))
	if resp, text := s.do(t, "GET", "/openapi.yaml", ""); resp.Header.Get("Content-Type") != "application/yaml" || string(text) != api.OpenAPI() {
		t.Errorf("%s %.100s", resp.Header, text)
	}
}

// A server without a registry documents the routes that it has, and no other.
func TestTheDocumentIsOfTheServer(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t))
	_, text := s.do(t, "GET", "/openapi.yaml", "")
	served, err := apitest.Read(string(text))
	if err != nil {
		t.Fatal(err)
	}
	d := document(t)
	gone := []string{"GET /workers", "POST /drain", "POST /register", "POST /resume", "POST /unregister"}
	want := slices.DeleteFunc(d.Routes(), func(r string) bool { return slices.Contains(gone, r) })
	if got := served.Routes(); !slices.Equal(got, want) || len(want)+len(gone) != len(d.Routes()) {
		t.Errorf("documented %q, want %q", got, want)
	}
	for _, r := range d.Routes() {
		method, path, _ := strings.Cut(r, " ")
		resp, text := s.do(t, method, path, "")
		if there := resp.StatusCode != 404 || !strings.Contains(string(text), "no such route"); there == slices.Contains(gone, r) {
			t.Errorf("%s: %d %.200s", r, resp.StatusCode, text)
		}
	}
}

// TestTheDocumentNamesEveryReason keeps the list of reasons complete.
func TestTheDocumentNamesEveryReason(t *testing.T) {
	for _, reason := range []string{
		edge.MalformedJSON, edge.MalformedEncoding, edge.UnknownField, edge.DuplicateField, edge.WrongType, edge.Negative, edge.NotInteger,
		edge.OutOfRange, edge.TooMany, edge.Missing, edge.Conflict, edge.UnknownModel, edge.UnknownGroup, edge.BlockSize, edge.UnknownArgument,
		edge.UnknownRoute, edge.Method, edge.MediaType, edge.Encoding, edge.BodyTooLarge, edge.HeaderTooLarge, edge.Timeout,
		edge.MalformedRequest, edge.Unauthenticated, edge.Forbidden, edge.Busy, edge.Connections, edge.Address, edge.Internal,
	} {
		if !strings.Contains(api.OpenAPI(), "- "+reason+"\n") {
			t.Errorf("the document does not have the reason %s", reason)
		}
	}
}

// TestADepartureFromTheDocumentIsSeen keeps the comparison honest.
func TestADepartureFromTheDocumentIsSeen(t *testing.T) {
	d := document(t)
	good := apitest.Exchange{Method: "POST", Path: "/v1/find_matches", Request: []byte(`{"model":"m","hashes":[18446744073709551615,"1"]}`),
		Status: 200, AnswerType: "application/json", Answer: []byte(`{"model":"m","spaces":[{"group":"","block_size":16,"blocks":1,"workers":[]}]}`)}
	d.Sees(t, good, map[string]func(x *apitest.Exchange){
		"route":          func(x *apitest.Exchange) { x.Path = "/v1/find" },
		"method":         func(x *apitest.Exchange) { x.Method = "GET" },
		"status":         func(x *apitest.Exchange) { x.Status = 201 },
		"error's form":   func(x *apitest.Exchange) { x.Status = 400 },
		"type":           func(x *apitest.Exchange) { x.AnswerType = "text/html" },
		"answer's field": func(x *apitest.Exchange) { x.Answer = []byte(`{"model":"m","spaces":[],"x":1}`) },
		"request":        func(x *apitest.Exchange) { x.Request = []byte(`{"model":"m","hashes":[-1]}`) },
		"both":           func(x *apitest.Exchange) { x.Request = []byte(`{"model":"m","hashes":[],"token_ids":[]}`) },
	})
}
