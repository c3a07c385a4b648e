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

// Of the events in a row that carry nothing of an answer so many count, from its beginning, and up to twice as many
// behind one that carries something, and no more, however they come in parts; where they are of no answer, all do.
func TestHollowEvents(t *testing.T) {
	const hollow, token = `data: {"id":"content","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}` + "\n\n", `data: {"choices":[{"text":"a"}]}` + "\n\n"
	for _, size := range []int{1, 7, len(hollow), 1000, 1 << 20} {
		e := events{answer: true}
		n, spoke := 0, false // as any part did of what was given last
		give := func(text string) (counted int) {
			before := n
			spoke = false
			for rest := []byte(text); len(rest) > 0; {
				part := rest[:min(size, len(rest))]
				rest = rest[len(part):]
				spoke = e.see(part) || spoke
				n += e.take()
			}
			return n - before
		}
		if got := give(strings.Repeat(hollow, 3*maxHollow)); got != maxHollow {
			t.Errorf("by %d bytes: %d hollow events count", size, got)
		}
		if got := give(hollow + hollow); got != 0 || spoke {
			t.Errorf("by %d bytes: %d further ones count, said %v", size, got, spoke)
		}
		if got := give(token); got != 1 {
			t.Errorf("by %d bytes: a token counts as %d", size, got)
		}
		for range 2 * maxHollow {
			if got := give(hollow + token); got != 2 {
				t.Fatalf("by %d bytes: a token and a hollow event count as %d", size, got)
			}
		}
		if got := give(strings.Repeat(hollow, 9*maxHollow)); got < maxHollow || got > 2*maxHollow {
			t.Errorf("by %d bytes: %d hollow events behind tokens count", size, got)
		}
		if e = (events{}); give(strings.Repeat(hollow, 9*maxHollow)) != 9*maxHollow || !spoke {
			t.Errorf("by %d bytes: events of no answer do not count", size)
		}
	}
	e, chunk := events{answer: true}, []byte(strings.Repeat(hollow, 9))
	if n := testing.AllocsPerRun(100, func() { e.see(chunk); e.take() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What an event of an answer has, as engines' APIs send it.
func TestCarries(t *testing.T) {
	for text, want := range map[string]bool{
		``: false, `{}`: false, `[DONE]`: false, `{"choices":[]}`: false, `{"type":"ping"}`: false, `"content" "text"`: false, `{"content"`: false,
		`{"choices":[{"delta":{"role":"assistant","content":""}}]}`:                                           false,
		`{"choices":[{"delta":{"role":"assistant","content":null,"reasoning_content":null}}]}`:                false,
		`{"choices":[{"text":"","finish_reason":null,"stop_reason":null,"token_ids":[]}],"usage":{}}`:         false,
		`{"model":"content","id":"\"text\":\"a\""}`:                                                           false,
		`{"type":"response.in_progress","response":{"text":{"format":{"type":"text"}},"reasoning":{"a":1}}}`:  false,
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`:                  false,
		`{"a_long_name_that_ends_in_content":"a","texts":"a","con\u0074ent":"a"}`:                             false,
		`{"type":"response.content_part.added","part":{"type":"output_text","annotations":[],"logprobs":[]}}`: false,
		`{"choices":[{"delta":{"content":"a"}}]}`:                                                             true,
		`{"choices":[{"delta":{"content" : "\""}}]}`:                                                          true,
		`{"choices":[{"delta":{"content":" "}}]}`:                                                             true,
		`{"choices":[{"text":"a"}]}`:                                                                          true,
		`{"choices":[{"delta":{"reasoning":"a"}}]}`:                                                           true,
		`{"choices":[{"delta":{"reasoning_content":"a"}}]}`:                                                   true,
		`{"choices":[{"delta":{"reasoning_details_of_a_kind":"a"}}]}`:                                         true,
		`{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{"}}]}}]}`:                             true,
		`{"choices":[{"text":"","token_ids":[ 1]}]}`:                                                          true,
		`{"choices":[{"delta":{},"finish_reason":"stop"}]}`:                                                   true,
		`{"choices":[],"usage":{"prompt_tokens":3}}`:                                                          true,
		`{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}`:                             true,
		`{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}`:               true,
		`{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"a"}}`:                     true,
		`{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`:                                         true,
		`{"type":"response.output_text.delta","delta":"a"}`:                                                   true,
		`{"type":"response.reasoning_text.delta","delta":"a"}`:                                                true,
	} {
		for size := 1; size <= len(text)+1; size++ {
			var c carries
			for rest := []byte("data: " + text); len(rest) > 0; {
				part := rest[:min(size, len(rest))]
				rest = rest[len(part):]
				c.see(part)
			}
			if c.something != want {
				t.Fatalf("%s by %d bytes: %v", text, size, c.something)
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
		"nothing else":        {token, strings.Repeat("data: {\"choices\":[{\"text\":\"\"}]}\n\n", maxHollow)},
		"nothing at all":      {"data: {\"choices\":[]}\n\n", strings.Repeat("data: {\"choices\":[]}\n\n", maxHollow)},
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
