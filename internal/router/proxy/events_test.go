package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/breaker"
)

// However a stream comes in parts, its events are counted, and comments, pings and empty lines are none of them.
func TestEvents(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "data: a\n\ndata: b\n\n": 2, "data: a\r\n\r\ndata: b\r\n\r\n": 2, ": ping\n\n: ping\n\n\n\n\r\n": 0, ": a\ndata: a\n\n": 1, "event: a\ndata: a\n\n": 1,
		"event: ping\ndata: {\"type\": \"ping\"}\n\ndata: a\n\n": 1, "event:ping\r\ndata: {}\r\n\r\n": 0, "event: pinging\ndata: a\n\n": 1, "event: ping, a long name\n\n": 1,
		"data: " + strings.Repeat(":", 99) + "\n\n": 1, "data: a\n": 0,
	} {
		for size := 1; size <= len(text)+1; size++ {
			var e events
			n, said := 0, false
			for rest := text; rest != ""; {
				part := rest[:min(size, len(rest))]
				rest = rest[len(part):]
				said = e.see([]byte(part)) || said
				n += e.take()
			}
			if n != want || said != (want > 0 || text == "data: a\n") {
				t.Errorf("%q by %d bytes: %d events, said %v; want %d", text, size, n, said, want)
			}
		}
	}
}

// An engine that gives nothing but comments gives nothing, before a token and behind one: it is left out, and its
// answers come to an end.
func TestOnlyComments(t *testing.T) {
	const token = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n"
	for name, c := range map[string]struct{ first, then string }{
		"comments":            {": ping\n\n", ": ping\n\n"},
		"parts of comments":   {": ping\n\n", ":"},
		"behind a token":      {token, ": ping\n\n"},
		"pings behind tokens": {token + token, "event: ping\ndata: {\"type\": \"ping\"}\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, setup{engines: 2, proxy: func(c *Config) { c.EngineIdle = 300 * time.Millisecond }, fleet: func(c *fleet.Config) {
				c.Route.OverdueAfter, c.Route.Breaker.Failures, c.Route.Breaker.Wait = 100*time.Millisecond, 1, time.Hour
				c.Route.Breaker.MaxWait = time.Hour
			}})
			l.prove(0, 1)
			l.engines[0].http.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { sseForEver(w, r, c.first, c.then) })
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			resp, err := l.send(ctx, "/v1/completions", `{"model":"org/model","prompt":[1,2,3],"max_tokens":9,"stream":true}`, headerWorker, "0")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close() //nolint:errcheck // only read
			l.eventually(func() error {
				if _, err := l.model().Router.BestWorker(ctx, route.Prompt{}, route.Options{}); err != nil { // which looks for who is overdue
					return err
				}
				if h := l.model().Router.Health()[0]; h.State != breaker.Open && !h.Silent {
					return fmt.Errorf("%+v", h)
				}
				return nil
			})
			if name == "comments" {
				return // its wait bounds it: --first-byte-timeout
			}
			if text, err := io.ReadAll(resp.Body); ctx.Err() != nil {
				t.Fatal(err, len(text))
			}
		})
	}
}

func sseForEver(w http.ResponseWriter, r *http.Request, first, then string) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for _, err := io.WriteString(w, first); err == nil && http.NewResponseController(w).Flush() == nil; _, err = io.WriteString(w, then) {
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}
