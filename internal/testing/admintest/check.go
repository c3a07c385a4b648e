package admintest

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/api"
	"github.com/kvatlas/kvatlas/internal/testing/apitest"
)

// Check asks the admin port at the URL for all that it shows, and fails the test
// if it answers otherwise than documented. The program asks for no tokens; it need
// not be ready.
func Check(t testing.TB, url string) {
	t.Helper()
	d, err := apitest.Read(api.Admin())
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	for _, route := range d.Routes() {
		method, path, _ := strings.Cut(route, " ")
		if method != http.MethodGet || strings.HasSuffix(path, "/profile") || strings.HasSuffix(path, "/trace") {
			continue
		}
		path = strings.Replace(path, "{profile}", "heap", 1)
		x := apitest.Exchange{Method: method, Path: path}
		if path == "/readyz" {
			path += "?verbose"
		}
		req, err := http.NewRequestWithContext(t.Context(), method, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		x.Answer, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close() // it is read
		if err != nil {
			t.Fatal(err)
		}
		x.Status, x.AnswerType = resp.StatusCode, resp.Header.Get("Content-Type")
		if err := d.Check(x); err != nil || x.Status != http.StatusOK && x.Path != "/readyz" {
			t.Errorf("%s: %d %v\n%.500s", route, x.Status, err, x.Answer)
		}
		asked++
	}
	if asked < 5 {
		t.Errorf("only %d routes are asked", asked)
	}
}
