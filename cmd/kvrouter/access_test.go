package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// TestTheRouterWithTokens starts one and asks with and without a token; the
// engine never sees it.
func TestTheRouterWithTokens(t *testing.T) {
	seen := make(chan string, 10)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/completions" || r.URL.Path == "/v1/messages" {
			seen <- r.Header.Get("Authorization") + r.Header.Get("X-Api-Key") + r.Header.Get("Cookie")
		}
		fmt.Fprint(w, `{"choices":[{}]}`)
	}))
	t.Cleanup(engine.Close)
	tokens := filepath.Join(t.TempDir(), "tokens")
	const token = "reader-0123456789abcdef"
	if err := os.WriteFile(tokens, []byte("- {token: "+token+", role: reader}"), 0o600); err != nil {
		t.Fatal(err)
	}
	url, _ := start(t, "--nats=none", "--kv-events=false", "--engines="+engine.URL, "--model=m", "--tokens-file="+tokens, "--admin-listen=127.0.0.1:0")
	post := func(authorization string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":[1,2]}`))
		if err != nil {
			t.Fatal(err)
		}
		if authorization != "" {
			req.Header.Set("Authorization", authorization)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	for authorization, want := range map[string]int{"": 401, "Bearer sk-wrong-wrong-wrong": 401, "Bearer " + token: 200} {
		if got := post(authorization); got != want {
			t.Errorf("%q: %d, want %d", authorization, got, want)
		}
	}
	if got := <-seen; got != "" || len(seen) != 0 {
		t.Errorf("the engine saw %q, and %d requests more", got, len(seen))
	}
	// Anthropic's clients have another header for it, on their own routes.
	for _, c := range []struct {
		path, key, authorization string
		want                     int
	}{
		{"/v1/messages", token, "", 200}, {"/v1/models", token, "", 200}, {"/v1/models/m", token, "", 200}, {"/v1/messages", token, "Bearer " + token, 200},
		{"/v1/messages", "sk-wrong-wrong-wrong", "", 401}, {"/v1/messages", token, "Bearer sk-wrong-wrong-wrong", 401},
		{"/v1/messages", "", "", 401}, {"/v1/completions", token, "", 401}, {"/v1/modelsof", token, "", 401},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+c.path, strings.NewReader(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(c.path, "/v1/models") {
			req.Method, req.Body, req.ContentLength = http.MethodGet, http.NoBody, 0
		}
		for name, value := range map[string]string{"X-Api-Key": c.key, "Authorization": c.authorization, "Cookie": "session=" + c.key} {
			if value != "" {
				req.Header.Set(name, value)
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != c.want {
			t.Errorf("%+v: %d", c, resp.StatusCode)
		}
		if c.path == "/v1/messages" && c.want == 200 {
			if got := <-seen; got != "" {
				t.Errorf("%+v: the engine saw %q", c, got)
			}
		}
	}
	for _, args := range [][]string{
		{"--http-listen=0.0.0.0:0"}, {"--http-listen=127.0.0.1:0", "--admin-listen=0.0.0.0:0"}, {"--http-listen=127.0.0.1:0", "--tokens-file=/nowhere"},
	} {
		if _, err := read(t, append(args, "--nats=none", "--kv-events=false")...); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}

// TestTheRoutersConnectionsAreLimited opens more than there may be.
func TestTheRoutersConnectionsAreLimited(t *testing.T) {
	url, _ := start(t, "--nats=none", "--kv-events=false", "--engines=http://127.0.0.1:1", "--model=m", "--health-every=0s",
		"--http-max-connections-per-ip=2", "--admin-listen=127.0.0.1:0")
	http.DefaultClient.CloseIdleConnections() // start has asked
	address := strings.TrimPrefix(url, "http://")
	open := func() (net.Conn, string) {
		t.Helper()
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() }) //nolint:errcheck // only to free it
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return c, ""
		}
		answer := make([]byte, 12)
		n, _ := io.ReadFull(c, answer) // a closed connection gives none
		return c, string(answer[:n])
	}
	const ok = "HTTP/1.1 200"
	var first net.Conn
	waittest.Until(t, func() error { // the connections of start are closed in a moment
		var answer string
		if first, answer = open(); answer != ok {
			return errors.New("refused")
		}
		second, answer := open()
		if answer == ok {
			return nil
		}
		return errors.Join(errors.New("the second is refused"), first.Close(), second.Close())
	})
	if _, answer := open(); answer != "" {
		t.Errorf("the third is answered %q", answer)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, func() error {
		if _, answer := open(); answer != ok {
			return errors.New("a closed connection made no room")
		}
		return nil
	})
}

// While NATS is away the engines that the settings name are served, and of other
// models nothing is said that would be final.
func TestWithoutNATSYet(t *testing.T) {
	list := filepath.Join(t.TempDir(), "workers")
	text := "[{worker_id: 9, model: listed, block_size: 4, transport: none, endpoints: {http: " + engine(t, mockapi.Config{}) + "}}]"
	if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	url, _ := startUnready(t, slog.New(slog.DiscardHandler), "--admin-listen=127.0.0.1:0", "--nats=nats://127.0.0.1:1", "--ready-without-nats=0",
		"--engines="+engine(t, mockapi.Config{}), "--model=m", "--block-size=4", "--registry-workers="+list)
	waittest.Until(t, func() error {
		if status, text, _ := ask("POST", url+"/v1/completions", `{"model":"m","prompt":[1,2,3],"max_tokens":1}`); status != 200 {
			return fmt.Errorf("%d %s", status, text)
		}
		return nil
	})
	if status, text, _ := ask("GET", url+"/readyz", ""); status != 503 {
		t.Errorf("ready: %d %s", status, text)
	}
	waittest.Until(t, func() error { // the list may be read after the engine has answered
		if status, text, _ := ask("GET", url+"/v1/models", ""); status != 200 || !strings.Contains(text, `"listed"`) {
			return fmt.Errorf("%d %s", status, text)
		}
		return nil
	})
	for path, body := range map[string]string{"/v1/completions": `{"model":"other","prompt":[1]}`, "/v1/embeddings": `{"model":"other"}`,
		"/v1/select": `{"model_name":"other","token_ids":[1,2,3,4]}`} {
		status, text, header := ask("POST", url+path, body)
		if status != 503 || header.Get("Retry-After") == "" || !strings.Contains(text, "workers_unknown") {
			t.Errorf("%s: %d %v %s", path, status, header, text)
		}
	}
	// Who has it may not be known yet, and a list would lack what those have.
	for _, request := range []string{"GET /v1/responses/x", "DELETE /v1/files/x", "POST /v1/batches/x/cancel", "GET /v1/files"} {
		method, path, _ := strings.Cut(request, " ")
		status, text, header := ask(method, url+path, "")
		if status != 503 || header.Get("Retry-After") == "" || !strings.Contains(text, "workers_unknown") {
			t.Errorf("%s: %d %v %s", request, status, header, text)
		}
	}
	for path, body := range map[string]string{"/v1/responses": `{"model":"m","input":"x","previous_response_id":"resp_x"}`, "/v1/batches": `{"model":"m","input_file_id":"file_x"}`} {
		if status, text, _ := ask("POST", url+path, body); status != 503 || !strings.Contains(text, "workers_unknown") {
			t.Errorf("%s that goes on with what nobody has who is known: %d %s", path, status, text)
		}
	}
}
