package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/breaker"
)

// A stream that gives nothing for longer than a first token may take is a failure of its worker's, before it is
// given up, and none any more once it goes on.
func TestStreamsThatStall(t *testing.T) {
	goOn := make(chan struct{})
	var steps atomic.Int64 // of the first
	l := newLab(t, setup{engines: 2, fleet: func(c *fleet.Config) {
		c.Route.OverdueAfter, c.Route.Breaker.Failures, c.Route.Breaker.Wait = 20*time.Millisecond, 1, time.Hour
		c.Route.Breaker.MaxWait = time.Hour
	},
		engine: func(i int, c *mockapi.Config) {
			c.Step = func(*mock.Report) time.Duration {
				if i == 0 && steps.Add(1) == 4 {
					<-goOn
				}
				return 0
			}
		}})
	l.prove(0, 1)
	resp, err := l.send(t.Context(), "/v1/completions", `{"model":"org/model","prompt":[1,2,3],"max_tokens":9,"stream":true}`, headerWorker, "0")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	is := func(want breaker.State) {
		t.Helper()
		l.eventually(func() error {
			if got := l.model().Router.Health()[0].State; got != want {
				return errors.New(got.String())
			}
			return nil
		})
	}
	is(breaker.Open)
	close(goOn)
	data, err := io.ReadAll(resp.Body)
	if _, whole := streamed(string(data)); err != nil || !whole {
		t.Errorf("%v after %q", err, strings.TrimSpace(string(data)))
	}
	is(breaker.Closed)
}

// A stream may have nothing to give behind its first token for longer than an engine of which nothing is known is
// given, wherever it goes: it goes to another one once, and comes to its end there.
func TestStreamsThatStallEverywhere(t *testing.T) {
	// Where the machine stands still, an engine is given up before it stalls, too: not each time.
	stalled := streamThatStallsEverywhere(t)
	for again := 0; again < 9 && !t.Failed() && stalled != 2; again++ {
		stalled = streamThatStallsEverywhere(t)
	}
	if stalled != 2 {
		t.Errorf("%d engines have stalled", stalled)
	}
}

// streamThatStallsEverywhere returns at how many engines it stalled.
func streamThatStallsEverywhere(t *testing.T) int64 {
	goOn := make(chan struct{})
	var stalled atomic.Int64
	l := newLab(t, setup{engines: 3, fleet: func(c *fleet.Config) { c.Route.OverdueAfter = 20 * time.Millisecond },
		engine: func(_ int, c *mockapi.Config) {
			var steps atomic.Int64
			c.Step = func(*mock.Report) time.Duration {
				if steps.Add(1) == 3 {
					stalled.Add(1)
					<-goOn
				}
				return 0
			}
		}})
	resp, err := l.send(t.Context(), "/v1/completions", `{"model":"org/model","prompt":[1,2,3],"max_tokens":9,"stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	l.eventually(func() error {
		failed := uint64(0)
		for _, h := range l.model().Router.Health() {
			failed += h.Failed
		}
		if failed < 2 && resp.StatusCode == http.StatusOK {
			return fmt.Errorf("%d failures", failed)
		}
		return nil
	})
	close(goOn)
	data, err := io.ReadAll(resp.Body)
	if _, whole := streamed(string(data)); err != nil || !whole {
		t.Errorf("%d %v after %q", resp.StatusCode, err, strings.TrimSpace(string(data)))
	}
	return stalled.Load()
}

// Streams of an engine that may break off are kept back until a few of their events are there, however their lines
// end, and no longer; what has no events is not.
func TestStreamsThatAreKeptBack(t *testing.T) {
	for name, c := range map[string]struct {
		kind, encoding, text string
		held                 bool
	}{
		"a role and a token": {"text/event-stream", "", "data: {}\n\ndata: {}\n\n", true},
		"two tokens":         {"text/event-stream", "", "data: {}\n\ndata: {}\n\ndata: {}\n\n", false},
		"with CR":            {"text/event-stream", "", "event: a\r\ndata: {}\r\n\r\nevent: b\r\ndata: {}\r\n\r\ndata: {}\r\n\r\n", false},
		"comments":           {"text/event-stream", "", ": a\n\n: b\n\n: c\n\ndata: {}\n\n", true},
		"its end":            {"text/event-stream", "", "data: {}\n\ndata: [DONE]\n\n", false},
		"packed":             {"text/event-stream", "gzip", "\x1f\x8b", false},
		"no events":          {"application/x-ndjson", "", "{}\n", false},
	} {
		s := stream{room: &room{buf: []byte(c.text)}, n: len(c.text)}
		s.judge = newJudge(&call{wants: true, generates: true}, &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {c.kind}, "Content-Encoding": {c.encoding}}})
		if got := s.held(&route.Answer{Trial: route.Trial{Unproven: true}}, time.Now()); got != c.held {
			t.Errorf("%s: %v", name, got)
		}
	}
}
