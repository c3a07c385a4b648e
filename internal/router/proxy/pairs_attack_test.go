package proxy

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/registry"
)

// Where the other decode worker fails, the one to which prompts do not come does all of the request.
func TestLostPromptsWhereTheOtherWorkerFails(t *testing.T) {
	for _, status := range []int{500, 503, 429} {
		l := pairLab(t, mockapi.TransferVLLM, failsAtTransfers)
		var failing atomic.Int64
		l.engines[2].http.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/v1/comp") {
				failing.Add(1)
				w.WriteHeader(status)
				return
			}
			l.engines[2].ServeHTTP(w, r)
		})
		for i := range 30 {
			if got, data, header := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3,4,5,6,7,8,9],"max_tokens":2}`, i)); got != 200 || header.Get(headerWorker) != "1" {
				t.Errorf("%d: request %d: %d %s by %q", status, i, got, data, header.Get(headerWorker))
			}
		}
		if failing.Load() == 0 {
			t.Error("the failing one was never asked")
		}
		l.idle()
	}
}

// Of an engine to which each second prompt does not come no client sees anything, and it is not called ill.
func TestEachSecondPromptIsLost(t *testing.T) {
	for _, way := range []string{mockapi.TransferVLLM, mockapi.TransferMooncake} {
		var n atomic.Int64
		l := pairLab(t, way, func(*mockapi.Config) {})
		e := l.engines[1]
		e.http.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/v1/comp") && n.Add(1)%2 == 0 {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			e.ServeHTTP(w, r)
		})
		pairs := map[string]int{}
		for i := range 80 {
			got, data, header := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3,4,5,6,7,8,9],"max_tokens":2}`, i))
			if got != 200 {
				t.Errorf("%s: request %d: %d %s", way, i, got, data)
			}
			pairs[header.Get(headerPrefill)+"→"+header.Get(headerWorker)]++
		}
		t.Log(pairs, l.number(`kvatlas_router_handed_over_total{result="lost"}`), l.number(`kvatlas_router_pairs_apart{model="org/model",block_size="4",group="",reason="lost"}`))
		l.idle()
	}
}

// While workers of three ways come, go and change, each request is served as long as there is a decode worker.
func TestPairsComeAndGoUnderTraffic(t *testing.T) {
	ways := []string{mockapi.TransferVLLM, mockapi.TransferMooncake, mockapi.TransferSGLang}
	describe := func(i int, w *registry.Worker, way string) {
		w.KVTransfer, w.Role = registry.KVTransfer(way), []registry.Role{registry.Prefill, registry.Decode}[i/6%2]
		w.Endpoints.Bootstrap = strings.TrimPrefix(w.Endpoints.HTTP, "http://")
	}
	l := newLab(t, setup{engines: 12,
		fleet:    func(c *fleet.Config) { c.PairLosses, c.PairRest = 2, 50*time.Millisecond },
		engine:   func(i int, c *mockapi.Config) { c.Transfer, c.Prefill = ways[i%3], i < 6 },
		registry: func(i int, w *registry.Worker) { describe(i, w, ways[i%3]) }})
	stop, served := make(chan struct{}), make(chan struct{}, 4)
	var all sync.WaitGroup
	var asked, paired atomic.Int64
	for c := range 4 {
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				stream := []string{"", `,"stream":true,"stream_options":{"include_usage":true}`}[i%2]
				status, data, header := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,%d,3,4,5,6,7,8,9],"max_tokens":2%s}`, c, i, stream))
				if status != 200 || strings.Contains(data, `"error"`) || stream != "" && !strings.Contains(data, "[DONE]") {
					t.Errorf("%d %s %v", status, data, header)
				}
				if asked.Add(1); header.Get(headerPrefill) != "" {
					paired.Add(1)
				}
				select {
				case served <- struct{}{}:
				case <-stop:
				}
			}
		})
	}
	rnd := rand.New(rand.NewPCG(20, 4))
	for step := range 60 {
		i := 1 + rnd.IntN(11)
		if i == 6 {
			i = 7 // which stays
		}
		w := registry.Worker{ID: uint64(i), Model: modelName, BlockSize: blockSize, Transport: registry.JetStream, Endpoints: registry.Endpoints{HTTP: l.engines[i].http.URL}}
		way := ways[i%3]
		switch rnd.IntN(4) {
		case 0:
			l.fleet.RemoveWorker(registry.Key{Space: space, Worker: uint64(i)})
			continue
		case 1: // it says another one than it has
			way = ways[rnd.IntN(3)]
		case 2:
			way = ""
		}
		describe(i, &w, way)
		w.Incarnation = uint64(step)
		if err := l.fleet.SetWorker(w, rnd.IntN(5) == 0); err != nil {
			t.Error(err)
		}
		l.fleet.Expire()
		_ = l.number(`kvatlas_router_pairs_apart{model="org/model",block_size="4",group="",reason="transfer"}`)
		for range 8 {
			<-served
		}
	}
	close(stop)
	all.Wait()
	t.Log(asked.Load(), "requests,", paired.Load(), "in pairs")
	if paired.Load() == 0 || paired.Load() == asked.Load() {
		t.Errorf("%d of %d in pairs", paired.Load(), asked.Load())
	}
	l.idle()
}
