package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/registry"
)

// A stream that has begun well is whole if it says that it is done, or why it has stopped.
func TestEndsOfStreams(t *testing.T) {
	const token, stop = `data: {"choices":[{"delta":{"content":"\"finish_reason\":\"stop\""},"finish_reason":null}]}` + "\n\n", `data: {"choices":[{"finish_reason": "stop"}]}` + "\n\n"
	const usage, done = `data: {"choices":[],"usage":{}}` + "\n\n", "data: [DONE]\n\n"
	for text, want := range map[string]bool{
		"": false, token: false, token + token: false, token + usage: false, token + `data: {"cho`: false,
		token + done: true, token + stop: true, token + stop + usage: true, token + stop + usage + done: true, token + "data:[DONE]": true,
		token + `data: {"error":{"code":500}}` + "\n\n" + done: false, token + `data: {"error":{"code":500}}` + "\n\n": false,
		token + `data: {"error":null,"choices":[]}` + "\n\n: ping\n\n" + done: true,
		`nt":"x"}}]}` + "\n\n" + done:                                         true,
	} {
		if got := endsWell([]byte(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// An engine whose streams begin well and end without a word is no idle one. Where such a stream comes as
// one, no client sees it; else none does once the engine is known for it.
func TestStreamsThatDoNotEnd(t *testing.T) {
	const token = `data: {"choices":[{"text":"x"}]}` + "\n\n"
	for _, c := range []struct {
		name   string
		answer func(w http.ResponseWriter, seen chan struct{})
		most   int
	}{
		{"at once", func(w http.ResponseWriter, _ chan struct{}) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, token) // its end goes with it
		}, 0},
		{"later", func(w http.ResponseWriter, seen chan struct{}) {
			sse(w, token)
			select { // a probe's client sees nothing of it
			case <-seen:
			case <-time.After(10 * time.Millisecond):
			}
		}, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := make(chan struct{}, 1)
			l := hollow(t, true, func(w http.ResponseWriter, _ *http.Request) { c.answer(w, seen) })
			ask := func(from, n int) (failed int) {
				for i := range n {
					_, data, _ := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3],"max_tokens":2,"stream":true}`, from+i))
					if _, done := streamed(data); !done {
						failed++
					}
				}
				return failed
			}
			failed := ask(0, 30)
			if h := l.model().Router.Health()[0]; failed > c.most || h.LeftOut == 0 {
				t.Errorf("%d of 30 streams failed: %+v", failed, h)
			}
			for i := range 5 { // it is tried
				before := l.model().Router.Health()[0]
				l.model().Router.Renew(0)
				if failed := ask(100*i+100, 10); failed > 0 {
					t.Errorf("%d of 10 streams failed as it was tried", failed)
				}
				if h := l.model().Router.Health()[0]; h.Failed == before.Failed {
					t.Errorf("it was not tried: %+v", h)
				}
			}
			l.idle()
		})
	}
}

// Streams of the other APIs are whole once they say so by an event of theirs, wherever it has its
// type and however it is cut into pieces.
func TestEndsOfOtherStreams(t *testing.T) {
	const messages, responses = "/v1/messages", "/v1/responses"
	long := strings.Repeat("x", 3*maxClosing)
	for _, c := range []struct {
		path, text string
		want       bool
	}{
		{messages, "", false},
		{messages, "event: message_stop\ndata: {}\n\n", false}, // nothing comes before it
		{messages, "\nevent: message_stop\ndata: {}\n\n", true},
		{messages, "\nevent:message_stop\r\ndata: {}\r\n\r\n", true},
		{messages, "\ndata: {\"type\": \"message_stop\"}\n\n", true},
		{messages, "\ndata: {\"delta\":{\"text\":\"\\\"type\\\":\\\"message_stop\\\" event: message_stop\\nevent: message_stop\"}}\n\n", false},
		{messages, "\ndata: {\"message_stop\":1}\n\ndata: {\"stop\":\"message_stop\"}\n\n", false},
		{messages, "\nevent: message_delta\ndata: {\"type\":\"message_delta\"}\n\nevent: error\ndata: {\"type\":\"error\"}\n\n", false},
		{messages, "\n\ndata: [DONE]\n\n", true},
		{responses, "\nevent: response.created\n\nevent: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\"}\n\n", false},
		{responses, "\nevent: response.completed\ndata: {\"response\":{\"text\":\"" + long + "\"}}\n\n", true},
		{responses, "\ndata: {\"response\":{\"text\":\"" + long + "\"},\"type\":\"response.completed\"}\n\n", true},
		{responses, "\ndata: {\"type\":\"response.incomplete\",\"response\":{\"text\":\"" + long + "\"}}\n\n", true},
		{responses, "\nevent: response.failed\ndata: {\"type\":\"response.failed\"}\n\n", false},
	} {
		for _, step := range []int{1, 7, 1 << 20} {
			s := newClosing(c.path)
			for rest := c.text; rest != ""; {
				n := min(step, len(rest))
				s.see([]byte(rest[:n]))
				rest = rest[n:]
			}
			if s.well != c.want {
				t.Errorf("%s %q in pieces of %d: %v", c.path, c.text, step, s.well)
			}
		}
	}
	if newClosing("/v1/chat/completions") != nil {
		t.Error("chats end otherwise")
	}
}

// An engine whose streams of other APIs begin well and end without the API's end is no idle one; one
// whose streams end well is not left out.
func TestOtherStreamsThatDoNotEnd(t *testing.T) {
	for path, c := range map[string]struct{ body, token, end string }{
		"/v1/messages":  {`{"model":"org/model","max_tokens":2,"stream":true,"messages":[{"role":"user","content":"%d"}]}`, "event: message_start\ndata: {\"type\":\"message_start\"}\n\n", "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"},
		"/v1/responses": {`{"model":"org/model","stream":true,"input":"%d"}`, "event: response.created\ndata: {\"type\":\"response.created\"}\n\nevent: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\"}\n\n", "event: response.completed\ndata: {\"type\":\"response.completed\"}\n\n"},
	} {
		for _, ends := range []bool{false, true} {
			l := hollow(t, true, func(w http.ResponseWriter, _ *http.Request) {
				if sse(w, c.token); ends {
					sse(w, c.end)
				}
			})
			cut := 0
			for i := range 30 {
				status, data, _ := l.post(path, fmt.Sprintf(c.body, i))
				if status != http.StatusOK {
					t.Fatal(path, status, data)
				}
				if !strings.Contains(data, strings.Fields(c.end)[1]) {
					cut++
				}
			}
			if h := l.model().Router.Health()[0]; cut > 4 || ends != (h.LeftOut == 0) || ends != (h.Failed == 0) {
				t.Errorf("%s, ends %v: %d of 30 streams are cut, %+v", path, ends, cut, h)
			}
			l.idle()
		}
	}
}

// One whose part goes on beside the decode worker's, and whose stream ends without a word that it is
// whole, has not done its part: nobody waits for what it does not hand over.
func TestPrefillsThatDoNotEnd(t *testing.T) {
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		sse(w, `data: {"choices":[{"text":"x"}]}`+"\n\n")
	}))
	t.Cleanup(h.Close)
	l := newLab(t, setup{engines: 3, engine: func(i int, c *mockapi.Config) { c.Transfer, c.Prefill = mockapi.TransferSGLang, i < 2 }, registry: func(i int, w *registry.Worker) {
		w.KVTransfer, w.Role, w.Endpoints.Bootstrap = registry.TransferSGLang, registry.Prefill, strings.TrimPrefix(w.Endpoints.HTTP, "http://")
		if i == 2 {
			w.Role = registry.Decode
		} else if i == 0 {
			w.Endpoints.HTTP = h.URL
		}
	}})
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		resp, err := l.send(ctx, "/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3],"max_tokens":2,"stream":true}`, i))
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if _, done := streamed(string(data)); err != nil || !done {
			t.Fatalf("request %d: %v %q", i, err, data)
		}
		cancel()
	}
	if h := l.model().Router.Health()[0]; h.LeftOut == 0 {
		t.Errorf("it is thought well: %+v", h)
	}
	l.idle()
}
