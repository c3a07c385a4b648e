package e2e

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
)

// An alias is its model: what was computed under one name is cached under the other, and
// engines hear the name that they know. Names that an engine lists lead to it.
func TestNamesOfModels(t *testing.T) {
	var engines []string
	for range 2 {
		s, err := mockapi.New(mockapi.Config{Model: "m", Engine: mock.Config{BlockSize: 16}})
		if err != nil {
			t.Fatal(err)
		}
		h := httptest.NewServer(s)
		t.Cleanup(func() { s.Close(); h.Close() })
		engines = append(engines, h.URL)
	}
	named := newSpy(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/models" {
			return false
		}
		_, _ = io.WriteString(w, `{"data":[{"id":"m"},{"id":"also/m"}]}`)
		return true
	})
	p, url := startRouter(t, t.TempDir(), "--nats=none", "--kv-events=false", "--engines="+strings.Join(append(engines, named.url), ","), "--model=m", "--admin-listen=127.0.0.1:0",
		"--aliases=gpt-4o=m", "--models-every=100ms", "--ready-workers=2")
	prompt := strings.Repeat("a prompt of some length ", 40)
	eventually(t, time.Minute, func() error {
		if status, text, _ := ask(url+"/v1/completions", `{"model":"also/m","prompt":"x"}`); status != http.StatusOK {
			return fmt.Errorf("%d %s", status, text)
		}
		return nil
	})
	for range 10 {
		if status, text, who := ask(url+"/v1/completions", `{"model":"also/m","prompt":"x"}`); status != http.StatusOK || who != "2" {
			t.Errorf("%d %s from worker %s", status, text, who)
		}
	}
	status, text, first := ask(url+"/v1/completions", `{"model":"m","max_tokens":2,"prompt":"`+prompt+`"}`)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	for range 5 {
		if status, text, who := ask(url+"/v1/completions", `{"model":"gpt-4o","max_tokens":2,"prompt":"`+prompt+`"}`); status != http.StatusOK || who != first {
			t.Errorf("%d %s from worker %s after %s", status, text, who, first)
		}
	}
	for path, want := range map[string]string{"/v1/models": `"id":"also/m"`, "/v1/models/gpt-4o": `"id":"gpt-4o"`, "/v1/models/also/m": `"id":"also/m"`, "/health": `"ok"`} {
		if data, err := get(t.Context(), url+path); err != nil || !strings.Contains(string(data), want) {
			t.Errorf("%s: %s %v", path, data, err)
		}
	}
	p.stop()
}

// A form goes by its field, an alias there too. The router is not ready while fewer
// workers are there than are asked for, but well.
func TestFormsAndReadiness(t *testing.T) {
	a := newSpy(t, nil)
	p, address := listeningRouter(t, t.TempDir(), "--nats=none", "--kv-events=false", "--engines="+a.url, "--model=m", "--admin-listen=127.0.0.1:0",
		"--aliases=whisper-1=m", "--ready-workers=2")
	url := "http://" + address
	eventually(t, time.Minute, func() error {
		resp, err := http.Get(url + "/readyz?verbose") //nolint:noctx // a test's own server
		if err != nil {
			return err
		}
		defer resp.Body.Close() //nolint:errcheck // only read
		if data, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(data), `"1 workers are there`) {
			return fmt.Errorf("%s %s %w", resp.Status, data, err)
		}
		return nil
	})
	if data, err := get(t.Context(), url+"/health"); err != nil {
		t.Errorf("%s %v", data, err)
	}
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	if part, err := w.CreateFormFile("file", "a.wav"); err != nil {
		t.Fatal(err)
	} else {
		_, _ = part.Write(bytes.Repeat([]byte("sound"), 4<<20))
	}
	_ = w.WriteField("model", "whisper-1")
	_ = w.Close()
	resp, err := http.Post(url+"/v1/audio/transcriptions", w.FormDataContentType(), &form) //nolint:noctx // a test's own server
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	got := a.take()
	if resp.StatusCode != http.StatusOK || len(got) != 1 || !strings.Contains(got[0], "name=\"model\"\r\n\r\nm\r\n") {
		t.Errorf("%s, %d requests", resp.Status, len(got))
	}
	p.stop()
}
