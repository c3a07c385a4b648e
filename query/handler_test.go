package query

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// fetched is what a client sees of an answer, but for what is each answer's own.
type fetched struct {
	status      int
	kind, allow string
	coding      string
	body        string
}

func fetch(t *testing.T, client *http.Client, method, url string, body io.Reader, token string) fetched {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if req.Header.Set("Accept-Encoding", "identity"); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fetched{resp.StatusCode, resp.Header.Get("Content-Type"), resp.Header.Get("Allow"), resp.Header.Get("Content-Encoding"), string(data)}
}

// Another server's port answers what the own port does, to the same callers.
func TestTheHandlerAnswersAsThePortDoes(t *testing.T) {
	s, _ := serveGuarded(t)
	other := httptest.NewServer(s.Handler())
	defer other.Close()
	for _, r := range []struct{ method, path, body string }{
		{"POST", "/v1/find_matches", `{"model":"m","hashes":[1,2]}`},
		{"POST", "/v1/explain", `{"model":"m","hashes":[1,2]}`},
		{"POST", "/v1/find_matches?model=m&elements=hashes", strings.Repeat("\x01", 16)},
		{"POST", "/v1/find_matches", `{"model":"m"`},
		{"GET", "/v1/find_matches", ""},
		{"GET", "/v1/spaces", ""},
		{"GET", "/v1/spaces?model=n%22%C3%A9", ""},
		{"HEAD", "/v1/spaces", ""},
		{"GET", "/v1/spaces?x=1", ""},
		{"GET", "/v1/workers", ""},
		{"GET", "/v1/dump?model=m&block_size=2&group=", ""},
		{"GET", "/v1/openapi.yaml", ""},
		{"GET", "/v1/%73paces", ""},
		{"GET", "/nowhere", ""},
		{"POST", "/register", `{}`},
	} {
		for _, token := range []string{"", tokenReader, tokenOperator, tokenTenant} {
			own := fetch(t, s.client, r.method, s.url+r.path, strings.NewReader(r.body), token)
			if got := fetch(t, other.Client(), r.method, other.URL+r.path, strings.NewReader(r.body), token); got != own {
				t.Errorf("%s %s with %q: %+v, the port says %+v", r.method, r.path, token, got, own)
			}
		}
	}
	for _, body := range []io.Reader{strings.NewReader(strings.Repeat(" ", 2<<20)), io.MultiReader(strings.NewReader(strings.Repeat(" ", 2<<20)))} {
		if got := fetch(t, other.Client(), "POST", other.URL+"/v1/find_matches", body, tokenReader); got.status != http.StatusRequestEntityTooLarge || !strings.Contains(got.body, "body_too_large") {
			t.Errorf("a body that is too large, %T: %+v", body, got)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if got := fetch(t, other.Client(), "GET", other.URL+"/v1/spaces", http.NoBody, tokenReader); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "is being closed") {
		t.Errorf("after the end: %+v", got)
	}
}

// A Handler that is asked for after the end of its server answers, too.
func TestAHandlerThatIsLate(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/v1/spaces", http.NoBody))
	if w.Code != http.StatusServiceUnavailable || !bytes.Contains(w.Body.Bytes(), []byte("is being closed")) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
