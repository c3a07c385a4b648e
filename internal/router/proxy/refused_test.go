package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/registry"
)

// leftOut returns how often each worker was left out.
func (l *lab) leftOut() (all []uint64) {
	for _, h := range l.model().Router.Health() {
		all = append(all, h.LeftOut)
	}
	return all
}

// An engine that knows neither the model nor the router's key answers at once, and is no idle one:
// another one is asked, and it is left out. Where all say so it is the request's fault, as it is
// taken to be where no other may be asked.
func TestRefusedByOneOrAll(t *testing.T) {
	for name, c := range map[string]struct {
		status  int
		engines int // that refuse, of three
		proxy   func(c *Config)
		want    int
		out     bool
	}{
		"one, 404":            {status: 404, engines: 1, want: 200, out: true},
		"one, 401":            {status: 401, engines: 1, want: 200, out: true},
		"one, 501":            {status: 501, engines: 1, want: 200, out: true},
		"all":                 {status: 404, engines: 3, want: 404},
		"all, no retries":     {status: 404, engines: 3, want: 404, proxy: func(c *Config) { c.Retries = 0 }},
		"all, no more":        {status: 404, engines: 3, want: 404, proxy: func(c *Config) { c.RetryShare = 0 }},
		"all, not asked for":  {status: 404, engines: 3, want: 404, proxy: func(c *Config) { c.Retry500 = false }},
		"wrong, for all":      {status: 400, engines: 3, want: 400},
		"wrong, said by each": {status: 422, engines: 3, want: 422},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, setup{engines: 3, proxy: c.proxy, engine: func(i int, e *mockapi.Config) {
				if i < c.engines {
					e.Fault = func(*http.Request) mockapi.Fault { return mockapi.Fault{Status: c.status} }
				}
			}})
			for i := range 30 {
				if status, data, _ := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3],"max_tokens":2}`, i)); status != c.want {
					t.Fatalf("%d %s", status, data)
				}
			}
			if all := l.leftOut(); (all[0] > 0) != c.out || all[1]+all[2] != 0 {
				t.Errorf("the engines were left out %d times", all)
			}
			if asked := l.engines[0].Requests.Load(); c.out && asked > 6 {
				t.Errorf("the one that refuses got %d of 30", asked)
			}
			l.idle()
		})
	}
}

// An engine that calls all requests wrong, with a status or in a stream, is no idle one either: as many are
// taken as said as fail to open a breaker. One that calls one wrong is believed, and where all
// call all wrong, nobody is left out, and requests are tried twice ever more seldom.
func TestCalledWrongByOneOrAll(t *testing.T) {
	for name, c := range map[string]struct {
		engines int // that call them wrong, of three
		stream  bool
		most    int // requests whose clients see it, of 30
		asked   int // requests to engines at most
	}{
		"one": {engines: 1, most: 3, asked: 42}, "one, in its stream": {engines: 1, stream: true, most: 3, asked: 42},
		"all": {engines: 3, most: 30, asked: 36}, "all, in their streams": {engines: 3, stream: true, most: 30, asked: 36},
	} {
		t.Run(name, func(t *testing.T) {
			var all atomic.Int64
			wrong := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if all.Add(1); c.stream {
					sse(w, `data: {"error":{"message":"x","code":400}}`+"\n\ndata: [DONE]\n\n")
					return
				}
				http.Error(w, `{"error":{"message":"x"}}`, http.StatusBadRequest)
			}))
			t.Cleanup(wrong.Close)
			l := newLab(t, setup{engines: 3, registry: func(i int, w *registry.Worker) {
				if i < c.engines {
					w.Endpoints.HTTP = wrong.URL
				}
			}})
			failed := 0
			for i := range 30 {
				status, data, _ := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3],"max_tokens":2,"stream":%t}`, i, c.stream))
				if status != http.StatusOK && status != http.StatusBadRequest {
					t.Fatalf("%d %s", status, data)
				}
				if strings.Contains(data, `"error":{"message":"x"`) {
					failed++
				}
			}
			if c.engines == 3 && failed != 30 || failed == 0 || failed > c.most || int(all.Load()) > c.asked {
				t.Errorf("of 30 requests %d fail, and engines are asked %d times", failed, all.Load())
			}
			if out := l.leftOut(); (out[0] > 0) != (c.engines == 1) || out[1]+out[2] != 0 {
				t.Errorf("the engines were left out %d times", out)
			}
			l.idle()
		})
	}
}

// The same of prefill workers: what the decode worker says of the request tells whose fault it is.
func TestRefusedByPrefillWorkers(t *testing.T) {
	for _, way := range []string{mockapi.TransferVLLM, mockapi.TransferSGLang} {
		for _, status := range []int{400, 401, 500} {
			for _, all := range []bool{false, true} {
				t.Run(fmt.Sprint(way, " ", status, " of all ", all), func(t *testing.T) {
					l := pools(t, way, func(i int, c *mockapi.Config) {
						if i == 0 || all {
							c.Fault = func(*http.Request) mockapi.Fault { return mockapi.Fault{Status: status} }
						}
					}, func(c *Config) { c.RetryBurst = 100 })
					want := map[bool]int{false: 200, true: status}[all]
					for i := range 30 {
						if got, data, _ := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3,4,5],"max_tokens":2}`, i)); got != want {
							t.Fatalf("%d %s", got, data)
						}
					}
					if out := l.leftOut(); (out[0] > 0) == all || out[1]+out[2]+out[3] != 0 {
						t.Errorf("the engines were left out %d times", out)
					}
					l.idle()
				})
			}
		}
	}
}

// A prefill worker that takes prompts and says nothing is left out for it, the last one as well, and
// decode workers, which wait for what it has, are not.
func TestPrefillWorkersThatHang(t *testing.T) {
	hung := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else a server does not see that its client is gone
		<-r.Context().Done()
	}))
	t.Cleanup(hung.Close)
	for _, hang := range []int{1, 2} {
		// Where the machine stands still, engines that do not hang are late, too: not each time.
		out := prefillWorkersThatHang(t, hung.URL, hang)
		for again := 0; again < 9 && !t.Failed() && out[2]+out[3] != 0; again++ {
			out = prefillWorkersThatHang(t, hung.URL, hang)
		}
		if out[0] == 0 || hang == 2 && out[1] == 0 || out[2]+out[3] != 0 {
			t.Errorf("with %d that hang the engines were left out %d times", hang, out)
		}
	}
}

// prefillWorkersThatHang returns how often each engine was left out.
func prefillWorkersThatHang(t *testing.T, hung string, hang int) []uint64 {
	l := newLab(t, setup{engines: 4,
		fleet:  func(c *fleet.Config) { c.Route.OverdueAfter = 500 * time.Millisecond },
		engine: func(i int, c *mockapi.Config) { c.Transfer, c.Prefill = mockapi.TransferVLLM, i < 2 },
		registry: func(i int, w *registry.Worker) {
			w.KVTransfer, w.Role = registry.TransferVLLM, registry.Decode
			if i < 2 {
				w.Role = registry.Prefill
			}
			if i < hang {
				w.Endpoints.HTTP = hung
			}
		}})
	for round := range 3 {
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				status, data, _ := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3,4,5],"max_tokens":2,"stream":%v}`, i, i%2 == 0))
				if status != http.StatusOK {
					t.Errorf("round %d: %d %s", round, status, data)
				}
			})
		}
		all.Wait()
	}
	l.idle()
	return l.leftOut()
}
