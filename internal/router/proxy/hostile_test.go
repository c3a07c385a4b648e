package proxy

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/registry"
)

// What is no request to an HTTP/1.1 server of this kind is refused, reaches no engine,
// and ends its connection.
func TestWhatHasNoPlaceHere(t *testing.T) {
	s, seen := spied(t, 1, nil)
	s.proxy = func(c *Config) { c.Administration = AdminOpen }
	l := newLab(t, s)
	for text, want := range map[string]string{
		"CONNECT engine:80 HTTP/1.1\r\nHost: engine:80\r\n\r\n":                                                                       "405 method_not_allowed",
		"TRACE /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n":                                                                           "405 method_not_allowed",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                                                                                            "505 http_version",
		"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n":                       "501 upgrade",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n":                "501 upgrade",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}":                                "400 ",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n":                           "501 ",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\n{}   ":                                                 "400 ",
		"POST /a\\b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":                                                                 "400 invalid_path",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n":                                        "400 body",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n{":     "",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9223372036854775807\r\n\r\n{":                                    "413 body_too_large",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Encoding: br\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}":        "415 unsupported_encoding",
		"GET http://engine/v1/../sleep/%2e%2e/%2f/..%5c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":                             "400 invalid_path",
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Kvatlas-Worker: zz\r\nContent-Length: 40\r\nConnection: close\r\n\r\n" + short: "400 ",
	} {
		if want == "" {
			continue
		}
		c := l.dial(text)
		if got := answerOn(t, c); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("%q: the connection goes on", text)
		}
	}
	if got := seen.take(); len(got) != 0 {
		t.Errorf("engines saw %q", got)
	}
}

// A request that both engines find wrong is the client's fault and no prefill
// worker's; the client is told what is wrong.
func TestTheClientsFaultAtThePrefillEngine(t *testing.T) {
	for _, way := range []string{mockapi.TransferVLLM, mockapi.TransferSGLang} {
		refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":{"message":"top_k is too large"}}`)
		}))
		t.Cleanup(refuses.Close)
		l := newLab(t, setup{engines: 2,
			registry: func(i int, w *registry.Worker) {
				w.KVTransfer, w.Role, w.Endpoints.HTTP = registry.KVTransfer(way), []registry.Role{registry.Prefill, registry.Decode}[i], refuses.URL
			}})
		status, data, header := l.post("/v1/completions", short)
		if status != 400 || data != `{"error":{"message":"top_k is too large"}}` || header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s", way, status, data)
		}
		l.idle()
		if n := l.metric("kvatlas_router_prefill_failed_total"); n != "0" {
			t.Errorf("%s: %s prefill workers failed", way, n)
		}
	}
}

// Whatever an engine says, wherever it says it, is in no line of the log.
func TestNoWordOfEnginesIsLogged(t *testing.T) {
	const words = "the-engines-words"
	for name, text := range map[string]string{
		"no HTTP":       words + "\r\n\r\n",
		"no status":     "HTTP/1.1 " + words + "\r\n\r\n",
		"a bad head":    "HTTP/1.1 200 OK\r\n" + words + "\r\n\r\n",
		"a bad length":  "HTTP/1.1 200 OK\r\nContent-Length: " + words + "\r\n\r\n",
		"an encoding":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: " + words + "\r\n\r\n",
		"an error":      "HTTP/1.1 500 " + words + "\r\nContent-Length: 17\r\n\r\n" + words,
		"a busy engine": "HTTP/1.1 503 " + words + "\r\nContent-Length: 17\r\n\r\n" + words,
		"no JSON":       "HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n" + words,
		"no tokens":     "HTTP/1.1 200 OK\r\nContent-Length: 29\r\n\r\n{\"tokens\":\"" + words + "\"",
		"bad chunks":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + words + "\r\n",
	} {
		ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		go func() { // ends with the listener
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = c.Read(make([]byte, 1<<20))
					_, _ = io.WriteString(c, text)
					_ = c.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // it is one
					_, _ = io.Copy(io.Discard, c)
					_ = c.Close()
				}()
			}
		}()
		for _, role := range []registry.Role{registry.Aggregated, registry.Prefill} {
			for _, body := range []string{short, `{"model":"org/model","prompt":"a text"}`, `{"model":"org/model","prompt":"` + strings.Repeat("long ", 20_000) + `"}`} {
				var log waittest.Log
				l := newLab(t, setup{engines: 2, proxy: func(c *Config) {
					c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
				},
					registry: func(i int, w *registry.Worker) {
						if i == 0 || role == registry.Aggregated {
							w.Endpoints.HTTP, w.Role = "http://"+ln.Addr().String(), role
						}
					}})
				resp, err := l.send(t.Context(), "/v1/completions", body)
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body) // it may break off
					_ = resp.Body.Close()
				}
				if strings.Contains(log.String(), words) {
					t.Errorf("%s, %s: %s", name, role, log.String())
				}
			}
		}
	}
}

// A worker that nobody may reach, one that does not answer and one that is drained are
// three things to look for.
func TestWhyNobodyServes(t *testing.T) {
	for want, change := range map[string]func(l *lab, w registry.Worker) error{
		"1 without_address": func(l *lab, w registry.Worker) error { w.Endpoints.HTTP = ""; return l.fleet.SetWorker(w, false) },
		"1 draining":        func(l *lab, w registry.Worker) error { return l.fleet.SetWorker(w, true) },
		"1 dead": func(l *lab, w registry.Worker) error {
			w.Endpoints.HTTP = "http://127.0.0.1:1"
			err := l.fleet.SetWorker(w, false)
			for range 3 {
				l.fleet.Probe(t.Context(), http.DefaultClient, "/health", patience)
			}
			return err
		},
	} {
		l := newLab(t, setup{})
		w := registry.Worker{Model: modelName, BlockSize: blockSize, Endpoints: registry.Endpoints{HTTP: l.engines[0].http.URL}}
		if err := change(l, w); err != nil {
			t.Fatal(err)
		}
		if status, data, header := l.post("/v1/completions", short); status != 503 || header.Get("Retry-After") == "" || !strings.Contains(data, ": "+want+`"`) {
			t.Errorf("%d %s, want %s", status, data, want)
		}
	}
}

// An engine cannot send the router elsewhere, whatever it is asked for.
func TestRedirectsOfEnginesAreAnswers(t *testing.T) {
	var asked atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = io.WriteString(w, `{"data":[{"id":"org/model","owned_by":"elsewhere"}]}`)
	}))
	t.Cleanup(elsewhere.Close)
	sends := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	t.Cleanup(sends.Close)
	l := newLab(t, setup{registry: func(_ int, w *registry.Worker) { w.Endpoints.HTTP = sends.URL }})
	q := tokens.Question{Space: space, Is: l.model().Engine(0).Process()}
	if name := l.proxy.engineSoftware(t.Context(), q); name != "" || asked.Load() > 0 {
		t.Errorf("the engine is of %q, by %d requests elsewhere", name, asked.Load())
	}
}
