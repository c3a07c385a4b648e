package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/api"
	"github.com/kvatlas/kvatlas/internal/testing/apitest"
)

// With --console=false nothing of the console is there, at either port; without, all is.
func TestWithoutConsole(t *testing.T) {
	for _, on := range []bool{false, true} {
		args := []string{"--nats=127.0.0.1:1", "--admin-listen=127.0.0.1:0"}
		if !on {
			args = append(args, "--console=false")
		}
		p := start(t, args...)
		for _, at := range []string{p.url + "/console/", "http://" + p.waitLog("admin port", "address") + "/"} {
			paths := []string{"GET ", "GET index.html", "GET main.js", "GET style.css", "GET icon.svg"}
			for _, r := range apitest.Once(api.Console)(t).Routes() {
				paths = append(paths, strings.NewReplacer(" /", " ", "{id}", "x-1").Replace(r))
			}
			for _, r := range paths {
				method, path, _ := strings.Cut(r, " ")
				req, err := http.NewRequestWithContext(t.Context(), method, at+path, strings.NewReader("{"))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				begin := make([]byte, 200)
				n, _ := io.ReadFull(resp.Body, begin)
				_ = resp.Body.Close()
				text := string(begin[:n])
				if there := !strings.Contains(text, `"reason":"unknown_route"`); there != on || !on && resp.StatusCode != http.StatusNotFound {
					t.Errorf("--console=%v: %s %s%s: %s %s", on, method, at, path, resp.Status, text)
				}
			}
		}
	}
}
