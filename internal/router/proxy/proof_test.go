package proxy

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// A worker whose events never match what is looked up, for another hash seed or
// block size, is found out by what its engine reports: in a metric, and in one
// line of the log that names it. Its neighbour is not.
func TestWrongPredictions(t *testing.T) {
	for name, change := range map[string]func(c *mockapi.Config){
		"seed":       func(c *mockapi.Config) { c.Seed = 1 },
		"block size": func(c *mockapi.Config) { c.Engine.BlockSize = 2 * blockSize },
	} {
		t.Run(name, func(t *testing.T) {
			var log waittest.Log
			l := newLab(t, setup{engines: 2,
				engine: func(i int, c *mockapi.Config) {
					if i == 1 {
						change(c)
					}
				},
				proxy: func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) },
			})
			prompt := strings.Trim(strings.Repeat("7,8,9,10,", 10), ",")
			for n := range 70 {
				for _, worker := range []string{"0", "1"} {
					body := fmt.Sprintf(`{"model":"org/model","prompt":[%s,%d],"max_tokens":1,"stream":%v,"stream_options":{"include_usage":true}}`, prompt, n, n%2 == 0)
					if status, data, _ := l.post("/v1/completions", body, headerWorker, worker); status != 200 {
						t.Fatalf("%d %s", status, data)
					}
				}
			}
			metric := func(name, worker string) string {
				return l.metric(obs.Name("kvatlas_router_"+name, "model", modelName, "block_size", "4", "group", "", "worker", worker, "dp_rank", "0"))
			}
			l.eventually(func() error { // the last answers are judged after they are read
				for _, w := range []string{"0", "1"} {
					if n := metric("predictions_total", w); n != "70" {
						return fmt.Errorf("%s answers of worker %s are judged", n, w)
					}
				}
				return nil
			})
			if metric("predictions_wrong", "0") != "0" || metric("predictions_wrong", "1") != "1" {
				t.Errorf("wrong: worker 0 %s, worker 1 %s", metric("predictions_wrong", "0"), metric("predictions_wrong", "1"))
			}
			if p, r := metric("predicted_cached_tokens_total", "1"), metric("reported_cached_tokens_total", "1"); p != "0" || r == "0" || r == "" {
				t.Errorf("worker 1: %s predicted, %s reported", p, r)
			}
			if p, r := metric("predicted_cached_tokens_total", "0"), metric("reported_cached_tokens_total", "0"); p != r || p == "0" {
				t.Errorf("worker 0: %s predicted, %s reported", p, r)
			}
			text := log.String()
			if n := strings.Count(text, "does not find cached what its events say"); n != 1 || !strings.Contains(text, "worker=1") {
				t.Errorf("%d lines about it:\n%s", n, text)
			}
		})
	}
}

// Where a prompt's tokens are estimated from its bytes, what the engine counted
// tells how many bytes a token has: a prediction that is right in bytes is right.
func TestEstimatedPredictions(t *testing.T) {
	var s setup
	s.fleet = func(c *fleet.Config) { c.Index = fleet.Approximate }
	s.proxy = func(c *Config) { c.Tokens = TokensBytes }
	answers := 0
	server(t, &s, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		cached := 24
		if answers++; answers == 1 {
			cached = 0
		}
		_, _ = fmt.Fprintf(w, `{"choices":[{}],"usage":{"prompt_tokens":25,"prompt_tokens_details":{"cached_tokens":%d}}}`, cached)
	})
	l := newLab(t, s)
	for range 70 {
		if status, data, _ := l.post("/v1/completions", `{"model":"org/model","prompt":"`+strings.Repeat("0123456789", 40)+`"}`); status != 200 {
			t.Fatalf("%d %s", status, data)
		}
	}
	l.eventually(func() error {
		stats := l.model().Check.Stats()
		if len(stats) != 1 || stats[0].Requests != 70 {
			return fmt.Errorf("%+v", stats)
		}
		if stats[0].Wrong || stats[0].Predicted != 69*25 || stats[0].Reported != 69*24 {
			t.Errorf("%+v", stats[0])
		}
		return nil
	})
}
