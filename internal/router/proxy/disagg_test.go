package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/registry"
)

// pools makes engines 0 and 1 prefill workers and the others decode workers.
func pools(t *testing.T, way string, more func(i int, c *mockapi.Config), change ...func(c *Config)) *lab {
	t.Helper()
	return newLab(t, poolsSetup(way, more, change...))
}

// namedPools makes them of models with further names.
func namedPools(t *testing.T, way string, names func(c *fleet.Config)) *lab {
	t.Helper()
	s := poolsSetup(way, nil)
	s.fleet = names
	return newLab(t, s)
}

func poolsSetup(way string, more func(i int, c *mockapi.Config), change ...func(c *Config)) setup {
	return setup{engines: 4,
		proxy: func(c *Config) {
			for _, f := range change {
				f(c)
			}
		},
		engine: func(i int, c *mockapi.Config) {
			c.Transfer, c.Prefill = way, i < 2
			if more != nil {
				more(i, c)
			}
		},
		registry: func(i int, w *registry.Worker) {
			w.KVTransfer, w.Role = registry.KVTransfer(way), registry.Decode
			w.Endpoints.Bootstrap = strings.TrimPrefix(w.Endpoints.HTTP, "http://") // the mock's port for everything
			if i < 2 {
				w.Role = registry.Prefill
			}
		}}
}

// Prompts are computed in the prefill pool and gone on with in the decode pool,
// in vLLM's way and in SGLang's: what the engines need to find each other arrives,
// decode engines compute one token of each prompt, and answers are those of a
// single engine.
func TestSplit(t *testing.T) {
	for _, way := range []string{mockapi.TransferVLLM, mockapi.TransferSGLang, mockapi.TransferMooncake} {
		t.Run(way, func(t *testing.T) {
			var computed [2]atomic.Int64 // prompt tokens, by pool
			l := pools(t, way, func(i int, c *mockapi.Config) {
				c.Step = func(r *mock.Report) time.Duration { computed[i/2].Add(int64(r.Prefill)); return 0 }
			})
			var all sync.WaitGroup
			const requests = 40
			for n := range requests {
				all.Go(func() {
					prompt := fmt.Sprintf("a prompt of some length, number %d", n)
					path, body := "/v1/completions", fmt.Sprintf(`{"max_tokens":5,"prompt":%q,"min_tokens":2,"model":"org/model"`, prompt)
					want := mockapi.Text(mockapi.Tokens(prompt), 5)
					if n%2 == 0 {
						path = "/v1/chat/completions"
						body = fmt.Sprintf(`{ "max_completion_tokens" : 3 ,"max_tokens":5,"messages":[{"role":"user","content":%q}],"model":"org/model"`, prompt)
						want = mockapi.Text(mockapi.Tokens("user: "+prompt+"\n"), 5)
					}
					if n%4 < 2 {
						body += `,"stream":true,"stream_options":{"include_usage":true}`
					}
					status, data, header := l.post(path, body+"}")
					text, whole := streamed(data)
					if n%4 >= 2 {
						text, whole = data, strings.Contains(data, want)
					}
					if status != 200 || !whole || !strings.Contains(text, want) {
						t.Errorf("%d %s, want %s", status, data, want)
					}
					if d, p := header.Get(headerWorker), header.Get(headerPrefill); d != "2" && d != "3" || p != "0" && p != "1" {
						t.Errorf("decode worker %q, prefill worker %q", d, p)
					}
				})
			}
			all.Wait()
			l.idle()
			var asked, received, lost int64
			for i, e := range l.engines {
				if i < 2 {
					asked += e.Requests.Load()
				}
				received += e.Received.Load()
				lost += e.Lost.Load()
			}
			if asked != requests || received != requests || lost != 0 || computed[1].Load() != requests || computed[0].Load() < requests {
				t.Errorf("%d prefills, %d received, %d lost; %d and %d tokens computed", asked, received, lost, computed[0].Load(), computed[1].Load())
			}
			if n := l.metric("kvatlas_router_decode_only_total"); n != "0" {
				t.Errorf("%s without prefill", n)
			}
		})
	}
}

// What a prefill worker had of a prompt its client sees as cached, as the decode engine tells it: what
// engines say to each other of that goes through.
func TestCachedAtThePrefillWorker(t *testing.T) {
	for _, way := range []string{mockapi.TransferVLLM, mockapi.TransferSGLang} {
		l := pools(t, way, nil)
		for i, body := range []string{`"prompt":%q`, `"messages":[{"role":"user","content":%q}]`} {
			path := []string{"/v1/completions", "/v1/chat/completions"}[i]
			for n, stream := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
				topic := strings.Repeat(fmt.Sprint(path, n), 100)
				ask := `{"model":"org/model","max_tokens":3,` + fmt.Sprintf(body, topic) + stream + `}`
				_, first, _ := l.post(path, ask)
				l.idle()
				_, second, h := l.post(path, ask)
				l.idle()
				if a, b := usageIn([]byte(first)), usageIn([]byte(second)); h.Get(headerPrefill) == "" || a.cached > 8 || b.cached < len(topic)/4-8 {
					t.Errorf("%s %s%s: %+v, then %+v", way, path, stream, a, b)
				}
			}
		}
	}
}

// What engines find each other by is the router's to say: a client's own word
// reaches no engine of a split fleet, whether a prefill worker has a part or not.
func TestClientsTransferFields(t *testing.T) {
	for _, drained := range []bool{false, true} {
		l := pools(t, mockapi.TransferVLLM, nil)
		if drained {
			for i := range uint64(2) {
				if err := l.model().Router.Drain(i, true); err != nil {
					t.Fatal(err)
				}
			}
		}
		status, data, _ := l.post("/v1/completions", `{"model":"org/model","prompt":[1,2,3],"max_tokens":2,"bootstrap_room":1,"bootstrap_host":"h",
			"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"h","remote_port":1,"remote_engine_id":"org/model@h","remote_block_ids":[0]}}`)
		if status != 200 || l.engines[2].Lost.Load()+l.engines[3].Lost.Load() != 0 {
			t.Errorf("drained %v: %d %s; an engine looked for a prompt where the client said", drained, status, data)
		}
	}
}

// A prefill worker that is not there, cannot be reached, fails, or hands nothing
// over is no reason not to answer.
func TestPrefillFails(t *testing.T) {
	for _, way := range []string{mockapi.TransferVLLM, mockapi.TransferSGLang, mockapi.TransferMooncake} {
		for name, c := range map[string]struct {
			engine func(i int, c *mockapi.Config)
			lab    func(l *lab)
			failed string
		}{
			"drained": {lab: func(l *lab) {
				for i := range uint64(2) {
					if err := l.model().Router.Drain(i, true); err != nil {
						l.t.Fatal(err)
					}
				}
			}, failed: "0"},
			"hangs up": {engine: fault(mockapi.Fault{Drop: true}), failed: "1"},
			"500":      {engine: fault(mockapi.Fault{Status: 500}), failed: "1"},
			"503":      {engine: fault(mockapi.Fault{Status: 503}), failed: "1"},
			"other way": {engine: func(i int, c *mockapi.Config) {
				if i < 2 {
					c.Transfer = mockapi.TransferSGLang // without a room it refuses; with one it is never met
					if way == mockapi.TransferSGLang {
						c.Fault = func(*http.Request) mockapi.Fault { return mockapi.Fault{Status: 400} }
					}
				}
			}, failed: "1"},
		} {
			t.Run(way+" "+name, func(t *testing.T) {
				l := pools(t, way, c.engine)
				if c.lab != nil {
					c.lab(l)
				}
				status, data, header := l.post("/v1/completions", `{"model":"org/model","prompt":[1,2,3,4,5,6],"max_tokens":4,"stream":true}`)
				text, whole := streamed(data)
				if status != 200 || !whole || text != mockapi.Text([]uint32{1, 2, 3, 4, 5, 6}, 4) || header.Get(headerPrefill) != "" {
					t.Errorf("%d %s %v", status, data, header)
				}
				if n := l.metric("kvatlas_router_decode_only_total"); n != "1" {
					t.Errorf("%s without prefill, want 1", n)
				}
				if n := l.metric("kvatlas_router_prefill_failed_total"); n != c.failed {
					t.Errorf("%s prefills failed, want %s", n, c.failed)
				}
				l.idle()
			})
		}
	}
}

// Once the decode worker says something it has the prompt: what becomes of the prefill worker's
// answer then is no reason to end it, nor to blame who gives it.
func TestPrefillFailsLate(t *testing.T) {
	for _, way := range []string{mockapi.TransferSGLang, mockapi.TransferMooncake} {
		for name, late := range map[string]func(w http.ResponseWriter){
			"500":      func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
			"400":      func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadRequest) },
			"nothing":  func(http.ResponseWriter) {},
			"hangs up": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
			"overdue":  nil,
		} {
			if late == nil && way == mockapi.TransferMooncake {
				continue // which takes its time
			}
			t.Run(way+" "+name, func(t *testing.T) {
				begun, goOn := make(chan struct{}), make(chan struct{})
				var log waittest.Log
				var steps atomic.Int64 // of the decode worker
				l := newLab(t, setup{engines: 2,
					proxy: func(c *Config) {
						if c.Log = slog.New(slog.NewTextHandler(&log, nil)); late == nil {
							c.FirstByte = time.Second
						}
					},
					engine: func(i int, c *mockapi.Config) {
						if c.Transfer, c.Prefill = way, i == 0; i == 1 {
							c.Step = func(*mock.Report) time.Duration {
								if steps.Add(1) > 2 {
									<-goOn
								}
								return 0
							}
						}
					},
					registry: func(i int, w *registry.Worker) {
						w.KVTransfer, w.Role = registry.KVTransfer(way), registry.Decode
						w.Endpoints.Bootstrap = strings.TrimPrefix(w.Endpoints.HTTP, "http://")
						if i == 0 {
							w.Role, w.Endpoints.HTTP = registry.Prefill, lateAnswers(t, w.Endpoints.HTTP, func(w http.ResponseWriter) {
								if <-begun; late == nil {
									<-goOn
									return
								}
								late(w)
							})
						}
					}})
				release := sync.OnceFunc(func() { close(goOn) })
				t.Cleanup(release)
				resp, err := l.send(t.Context(), "/v1/completions", `{"model":"org/model","prompt":[1,2,3,4,5,6],"max_tokens":20,"stream":true}`)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				head := make([]byte, 10)
				if _, err := io.ReadFull(resp.Body, head); err != nil {
					t.Fatal(err)
				}
				close(begun)
				l.eventually(func() error {
					if l.engines[1].Aborted.Load() == 0 && !strings.Contains(log.String(), "prefill worker") {
						return errors.New("nothing has come of it")
					}
					return nil
				})
				release()
				data, err := io.ReadAll(resp.Body)
				text, whole := streamed(string(head) + string(data))
				if err != nil || !whole || text != mockapi.Text([]uint32{1, 2, 3, 4, 5, 6}, 20) || resp.Header.Get(headerPrefill) != "0" {
					t.Errorf("%v, whole %v: %s%s", err, whole, head, data)
				}
				l.idle()
				for _, h := range l.model().Router.Health() {
					if h.Failed != 0 {
						t.Errorf("worker %d, which did its part, has failed %d times", h.Worker, h.Failed)
					}
				}
			})
		}
	}
}

// lateAnswers is an engine in front of another one, that says late what it says to requests to generate.
func lateAnswers(t *testing.T, engine string, say func(w http.ResponseWriter)) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := http.NewRequestWithContext(r.Context(), r.Method, engine+r.URL.Path, r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return // who asks has gone
		}
		defer resp.Body.Close()
		if data, err := io.ReadAll(resp.Body); r.Method != http.MethodPost && err == nil {
			_, _ = w.Write(data)
			return
		}
		say(w)
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.URL
}

// A pair that cannot talk does not try to: the decode worker does all, and why is said.
func TestPairsOfTwoWaysAreRefused(t *testing.T) {
	l := newLab(t, setup{engines: 2,
		engine: func(i int, c *mockapi.Config) {
			c.Transfer, c.Prefill = []string{mockapi.TransferMooncake, mockapi.TransferVLLM}[i], i == 0
		},
		registry: func(i int, w *registry.Worker) {
			w.KVTransfer, w.Role = []registry.KVTransfer{registry.TransferMooncake, registry.TransferVLLM}[i], []registry.Role{registry.Prefill, registry.Decode}[i]
			w.Endpoints.Bootstrap = strings.TrimPrefix(w.Endpoints.HTTP, "http://")
		}})
	status, data, header := l.post("/v1/completions", `{"model":"org/model","prompt":[1,2,3,4,5,6],"max_tokens":4}`)
	if status != 200 || header.Get(headerPrefill) != "" {
		t.Errorf("%d %s %v", status, data, header)
	}
	if n, asked := l.metric("kvatlas_router_decode_only_total"), l.engines[0].Requests.Load(); n != "1" || asked != 0 {
		t.Errorf("%s refused, the prefill worker was asked %d times", n, asked)
	}
}

// What came of a prompt the decode worker says: where it computes what the prefill worker
// has computed, that is counted.
func TestPromptsThatDoNotComeAreCounted(t *testing.T) {
	for _, c := range []struct{ decode, came, lost string }{{mockapi.TransferMooncake, "2", "0"}, {"", "0", "2"}} {
		l := pools(t, mockapi.TransferMooncake, func(i int, e *mockapi.Config) {
			if i >= 2 {
				e.Transfer = c.decode
			}
		})
		for n, stream := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
			prompt := strings.Repeat(fmt.Sprint("topic ", n), 50)
			if status, data, _ := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","max_tokens":3,"prompt":%q%s}`, prompt, stream)); status != 200 {
				t.Fatalf("%d %s", status, data)
			}
			l.idle()
		}
		came, lost := l.metric(`kvatlas_router_handed_over_total{result="came"}`), l.metric(`kvatlas_router_handed_over_total{result="lost"}`)
		if came != c.came || lost != c.lost {
			t.Errorf("decode engines with connector %q: %s prompts came, %s were lost", c.decode, came, lost)
		}
	}
}

func fault(f mockapi.Fault) func(i int, c *mockapi.Config) {
	return func(i int, c *mockapi.Config) {
		if i < 2 {
			c.Fault = func(*http.Request) mockapi.Fault { return f }
		}
	}
}

// While the prompt is computed its tokens weigh on the prefill worker and its
// blocks on the decode worker; then the prefill worker is free. A client that
// leaves at either time leaves nothing behind.
func TestSplitBookings(t *testing.T) {
	for _, way := range []string{mockapi.TransferVLLM, mockapi.TransferSGLang} {
		for _, leaves := range []string{"never", "in prefill", "in decode"} {
			t.Run(way+" "+leaves, func(t *testing.T) {
				gates := [2]chan struct{}{make(chan struct{}), make(chan struct{})} // of the pools
				l := pools(t, way, func(i int, c *mockapi.Config) {
					c.Step = func(*mock.Report) time.Duration { <-gates[i/2]; return 0 }
				})
				open := [2]func(){sync.OnceFunc(func() { close(gates[0]) }), sync.OnceFunc(func() { close(gates[1]) })}
				t.Cleanup(func() { open[0](); open[1]() }) // before the lab's: the engines go on
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan struct{})
				go func() {
					resp, err := l.send(ctx, "/v1/completions", `{"model":"org/model","prompt":[1,2,3,4,5,6,7,8,9],"max_tokens":3,"stream":true}`)
					if err == nil {
						_, _ = io.Copy(io.Discard, resp.Body) // it may break off
						_ = resp.Body.Close()
					}
					close(ended)
				}()
				loads := func(prefill, decode string) {
					t.Helper()
					l.eventually(func() error {
						var got [2]string
						for _, x := range l.model().Router.Loads() {
							if x.Requests > 0 {
								got[x.Worker/2] += fmt.Sprintf("%d tokens, %g blocks", x.PrefillTokens, x.DecodeBlocks)
							}
						}
						if got != [2]string{prefill, decode} {
							return fmt.Errorf("loads are %q", got)
						}
						return nil
					})
				}
				loads("9 tokens, 0 blocks", "0 tokens, 2 blocks")
				if leaves == "in prefill" {
					cancel()
					<-ended
					loads("", "")
					open[0]()
					open[1]()
					l.idle()
					return
				}
				open[0]()
				loads("", "0 tokens, 2 blocks")
				if leaves == "in decode" {
					cancel()
				} else {
					open[1]()
				}
				<-ended
				loads("", "")
				open[1]()
				l.idle()
			})
		}
	}
}

func TestSplice(t *testing.T) {
	for _, c := range []struct{ in, drop, add, want string }{
		{`{}`, "", "", `{}`},
		{` { "a" : 1 , "b":[2, "}"] } `, "", `"c":3`, `{"a" : 1,"b":[2, "}"],"c":3}`},
		{`{"a":1,"b":{"a":2},"a":"x\""}`, "a", `"c":3`, `{"b":{"a":2},"c":3}`},
		{`{"\u0061":1}`, "a", `"c":3`, `{"c":3}`},
		{`{"a":1}`, "a", "", `{}`},
	} {
		got, err := splice([]byte(c.in), strings.Split(c.drop, " "), []byte(c.add))
		if err != nil || string(bytes.Join(got, nil)) != c.want {
			t.Errorf("%s without %s with %s: %s %v, want %s", c.in, c.drop, c.add, got, err, c.want)
		}
	}
	for _, bad := range []string{``, `[]`, `{"a":1`, `{"a":1}x`, `{"a" 1}`} {
		if got, err := splice([]byte(bad), nil); err == nil {
			t.Errorf("%s gives %s", bad, got)
		}
	}
}
