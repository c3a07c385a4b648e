package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/securetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// Engines that ask for a key and a certificate get the router's, whatever they are
// asked; a client's own reaches none.
func TestEnginesThatAskForAKey(t *testing.T) {
	authority, dir := securetest.New(t), t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	authority.Issue("engine", file("engine.pem"), file("engine.key"))
	authority.Issue("router", file("router.pem"), file("router.key"))
	var mu sync.Mutex
	asked := map[string]int{}
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		all := fmt.Sprint(r.Header)
		if r.Header.Get("Authorization") != "Bearer the-engines-key" || strings.Contains(all, "0123456789abcdef") || strings.Contains(all, "clients-own") {
			t.Errorf("%s %s with %s", r.Method, r.URL.Path, all)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mu.Lock()
		asked[r.URL.Path]++
		mu.Unlock()
		_, _ = io.WriteString(w, `{"tokens":[1,2,3],"data":[],"choices":[{}]}`)
	}))
	engine.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ClientCAs: authority.Client().RootCAs, ClientAuth: tls.RequireAndVerifyClientCert}
	pair, err := tls.LoadX509KeyPair(file("engine.pem"), file("engine.key"))
	if err != nil {
		t.Fatal(err)
	}
	engine.TLS.Certificates = []tls.Certificate{pair}
	var now atomic.Pointer[tls.Config]
	now.Store(engine.TLS.Clone())
	engine.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return now.Load(), nil }
	engine.Config.ErrorLog = log.New(io.Discard, "", 0)
	engine.StartTLS()
	t.Cleanup(engine.Close)
	securetest.Replace(t, file("tokens"), []byte("[{token: reader-0123456789abcdef, role: reader}, {token: operator-0123456789abcdef, role: operator}]"))
	securetest.Replace(t, file("key"), []byte("the-engines-key\n"))
	securetest.Replace(t, file("credentials"), []byte("[{model: m, hosts: [127.0.0.1], token_file: "+file("key")+"}]"))
	url, stop := start(t, "--data-dir="+dir, "--engines="+engine.URL, "--model=m", "--block-size=4", "--admin-listen=127.0.0.1:0", "--health-every=50ms",
		"--models-every=50ms", "--load-every=50ms", "--busy-prefill-tokens=1000000", "--tokens-file="+file("tokens"),
		"--engine-credentials="+file("credentials"), "--engine-ca="+authority.File, "--engine-cert="+file("router.pem"), "--engine-key="+file("router.key"))
	post := func(token, path, body string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token+"-0123456789abcdef")
		for _, name := range []string{"X-Api-Key", "X-Goog-Api-Key", "api-key", "Ocp-Apim-Subscription-Key", "Proxy-Authorization", "Cookie", "X-Auth-Token", "X-Amz-Security-Token"} {
			req.Header.Set(name, "clients-own")
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if data, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s %v", path, resp.StatusCode, data, err)
		}
	}
	post("reader", "/v1/completions", `{"model":"m","prompt":"a text"}`)
	post("reader", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("long ", 40_000)+`"}]}`)
	post("reader", "/v1/embeddings", `{"model":"m","input":"x"}`)
	post("reader", "/generate", `{"model":"m","text":"x"}`)
	post("reader", "/tokenize", `{"model":"m","prompt":"x"}`)
	post("reader", "/v1/responses", `{"model":"m","input":"x"}`)
	post("reader", "/v1/responses/resp_1/cancel", ``)
	post("operator", "/reset_prefix_cache", ``)
	waittest.Until(t, func() error {
		mu.Lock()
		defer mu.Unlock()
		for _, path := range []string{"/health", "/metrics", "/v1/models", "/tokenize", "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/generate", "/v1/responses", "/v1/responses/resp_1/cancel", "/reset_prefix_cache"} {
			if asked[path] == 0 {
				return fmt.Errorf("%s is not asked: %v", path, asked)
			}
		}
		return nil
	})

	// The engine's certificate is another authority's from now on, then the router hears of that.
	other := securetest.New(t)
	other.Issue("engine", file("engine.pem"), file("engine.key"))
	if pair, err = tls.LoadX509KeyPair(file("engine.pem"), file("engine.key")); err != nil {
		t.Fatal(err)
	}
	renewed := engine.TLS.Clone()
	renewed.GetConfigForClient, renewed.Certificates = nil, []tls.Certificate{pair}
	now.Store(renewed)
	served := func(want bool) {
		t.Helper()
		waittest.Until(t, func() error {
			engine.CloseClientConnections()
			status, text, _ := askAs(t, "reader-0123456789abcdef", "POST", url+"/v1/completions", `{"model":"m","prompt":"a text"}`)
			if (status == http.StatusOK) != want {
				return fmt.Errorf("%d %s", status, text)
			}
			return nil
		})
	}
	served(false)
	text, err := os.ReadFile(other.File)
	if err != nil {
		t.Fatal(err)
	}
	securetest.Replace(t, authority.File, text)
	served(true)
	stop()
}
