package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
)

// What an answer says, however it is cut into pieces.
func TestVerdicts(t *testing.T) {
	const events, object = "text/event-stream; charset=utf-8", "application/json"
	token := `data: {"id":"1","object":"text_completion","error":null,"choices":[{"text":"\"error\""}]}` + "\n\n"
	for _, c := range []struct {
		kind, text string
		passing    bool // no completion and no chat
		want       verdict
	}{
		{kind: events, want: fails},
		{kind: events, text: "data: [DONE]\n\n", want: fails},
		{kind: events, text: ": ping\n\nevent: ping\r\n\r\ndata:\n\n", want: fails},
		{kind: events, text: token, want: good},
		{kind: events, text: ": ping\n\n" + token + `data: {"error":{"code":500}}` + "\n\n", want: good},
		{kind: events, text: `data: {"error":{"message":"out of memory","code":500}}` + "\n\ndata: [DONE]\n\n", want: fails},
		{kind: events, text: `data: {"error":{"message":"top_k","code":400}}` + "\n\n", want: refuses},
		{kind: events, text: `data: {"error":{"message":"no such model","code":"404"}}` + "\n\n", want: refuses},
		{kind: events, text: `data:{"error":"out of memory","error_type":"generation"}` + "\n\n", want: fails},
		{kind: events, text: `data: {"object":"error","message":"top_k","code":400}` + "\n\n", want: refuses},
		{kind: events, text: `event: error` + "\n" + `data: {"type":"error","error":{"type":"overloaded_error"}}` + "\n\n", passing: true, want: fails},
		{kind: events, text: `event: message_start` + "\n" + `data: {"type":"message_start"}` + "\n\n", passing: true, want: good},
		{kind: events, text: "event: response.created\ndata: {\"type\":\"response.created\"}\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\n", passing: true, want: fails},
		{kind: events, text: `data: {"type":"response.created"}` + "\n\n" + `data: {"type":"response.failed","response":{}}` + "\n\n", passing: true, want: fails},
		{kind: events, text: `data: {"type":"response.created"}` + "\n\n" + `data: {"type":"response.output_item.added"}` + "\n\n", passing: true, want: good},
		{kind: events, text: `data: {"choices":[{"te`, want: fails},
		{kind: events, text: "data: a word\n\n", want: fails},
		{kind: events, text: "data: a word\n\n" + token, want: good},
		{kind: events, text: "data: a word\n\n", passing: true, want: good},
		{kind: object, text: `{"model":"choices","choices":[{"text":"x"}]}`, want: good},
		{kind: object, text: `{"model":"choices"}`, want: fails},
		{kind: object, want: fails},
		{kind: object, text: ` {"id":"1", "choices": [{"text":"x"}]}` + "\n", want: good},
		{kind: object, text: `{"id":"1","choices":[{"text":"x`, want: fails},
		{kind: object, text: `{}`, want: fails},
		{kind: object, text: `{"id":"1", "choices" : [ ` + "\n" + `]}`, want: fails},
		{kind: object, text: `{"id":"1","choices":null}`, want: fails},
		{kind: events, text: `data: {"choices":[]}` + "\n\n" + `data: {"choices":[ ],"usage":{}}` + "\n\ndata: [DONE]\n\n", want: fails},
		{kind: events, text: `data: {"choices":[],"prompt_filter_results":[{}]}` + "\n\n" + token, want: good},
		{kind: events, text: `data: {"choices":[]}` + "\n\n" + `data: {"error":{"code":500}}` + "\n\n", want: fails},
		{kind: events, text: `data: {"choices":[]}` + "\n\n", passing: true, want: good},
		{kind: object, text: `{"error":{"code":500}}`, want: fails},
		{kind: object, text: `{"error":{"code":422}}`, want: refuses},
		{kind: object, text: `{"object":"error","code":400}`, want: refuses},
		{kind: "text/html", text: "<html>starting</html>", want: fails},
		{kind: "text/html", text: "<html>starting</html>", passing: true, want: good},
		{kind: object, text: "[[1,2]]", passing: true, want: good},
		{kind: object, text: "[[1,2", passing: true, want: fails},
		{kind: object, text: " \n", passing: true, want: fails},
		{kind: object, text: strings.Repeat(" ", maxVerdict) + "{}", want: good},
	} {
		for _, step := range []int{1, 7, 1 << 20} {
			j := newJudge(&call{wants: true, generates: !c.passing}, &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {c.kind}}})
			for rest := c.text; rest != ""; {
				n := min(step, len(rest))
				j.see([]byte(rest[:n]))
				rest = rest[n:]
			}
			if got := j.end(); got != c.want {
				t.Errorf("%q in pieces of %d: %d, want %d", c.text, step, got, c.want)
			}
		}
	}
	for _, j := range []judge{
		newJudge(&call{}, &http.Response{StatusCode: http.StatusOK}),
		newJudge(&call{wants: true}, &http.Response{StatusCode: http.StatusNoContent}),
	} {
		if j.end() != good {
			t.Error("an answer that nobody waits for is judged")
		}
	}
	packed := newJudge(&call{wants: true, generates: true}, &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Encoding": {"gzip"}}})
	if packed.see([]byte("\x1f\x8b")); packed.end() != good {
		t.Error("an answer that cannot be read is judged")
	}
	for how, text := range map[string]string{"gzip": "no gzip", "x-gzip": "", "zstd": "\x1f\x8b\x00\x00"} {
		packed = newJudge(&call{wants: true, generates: true}, &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Encoding": {how}}})
		if packed.see([]byte(text)); packed.end() != fails {
			t.Errorf("%q is taken for %s", text, how)
		}
	}
}

// hollow is one engine that answers as it is told, in front of it a router that knows
// another one that is well, if well is set.
func hollow(t *testing.T, well bool, answer http.HandlerFunc) *lab {
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		answer(w, r)
	}))
	t.Cleanup(h.Close)
	return newLab(t, setup{engines: 2, registry: func(i int, w *registry.Worker) {
		if i == 0 || !well {
			w.Endpoints.HTTP = h.URL
		}
	}})
}

// An answer with status 200 and nothing in it, or an error, goes to no client while
// another engine may do better, and counts against the engine.
func TestAnswersThatSayNothing(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"empty":      func(http.ResponseWriter) {},
		"no content": func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) },
		"a redirect": func(w http.ResponseWriter) { w.Header().Set("Location", "/"); w.WriteHeader(http.StatusFound) },
		"a page":     func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<html>starting</html>") },
		"done":       func(w http.ResponseWriter) { sse(w, "data: [DONE]\n\n") },
		"an error": func(w http.ResponseWriter) {
			sse(w, `data: {"error":{"message":"out of `)
			sse(w, `memory","code":500}}`+"\n\ndata: [DONE]\n\n")
		},
		"no choices": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[]}`)
		},
		"events without choices": func(w http.ResponseWriter) { sse(w, `data: {"choices":[]}`+"\n\ndata: [DONE]\n\n") },
		"not packed": func(w http.ResponseWriter) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "no gzip")
		},
		"shorter than it says": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"choices":[{"te`)
		},
		"cut": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[{"te`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := hollow(t, true, func(w http.ResponseWriter, _ *http.Request) { answer(w) })
			for i := range 30 {
				stream := i%2 == 0
				status, data, _ := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3],"max_tokens":2,"stream":%t}`, i, stream))
				if _, done := streamed(data); status != 200 || stream && !done || !stream && !strings.Contains(data, `"choices":[{`) {
					t.Fatalf("request %d: %d %q", i, status, data)
				}
			}
			if h := l.model().Router.Health()[0]; h.Failed == 0 || h.LeftOut == 0 {
				t.Errorf("the engine is thought well: %+v", h)
			}
			l.idle()
		})
	}
}

// Where every engine answers so, the client gets what the last one has said, or learns
// that it was nothing; a request that the engines find wrong is not theirs.
func TestAnswersThatSayNothingAnywhere(t *testing.T) {
	const body = `{"model":"org/model","prompt":[1,2,3],"stream":true}`
	for text, want := range map[string]string{
		"": "502 ", "data: [DONE]\n\n": "200 data: [DONE]\n\n",
		`data: {"error":{"code":500}}` + "\n\n": "200 " + `data: {"error":{"code":500}}` + "\n\n",
		`data: {"error":{"code":400}}` + "\n\n": "200 " + `data: {"error":{"code":400}}` + "\n\n",
	} {
		l := hollow(t, false, func(w http.ResponseWriter, _ *http.Request) { sse(w, text) })
		for range 10 {
			if status, data, _ := l.post("/v1/completions", body); !strings.HasPrefix(fmt.Sprintf("%d %s", status, data), want) {
				t.Fatalf("%q: %d %q", text, status, data)
			}
		}
		for _, h := range l.model().Router.Health() {
			if h.LeftOut > 0 {
				t.Errorf("%q: %+v", text, h)
			}
		}
	}
}

// What goes wrong after the client has seen something goes wrong for it, and counts
// against the engine; what a client sees at once does not wait for a word.
func TestStreamsThatFailLate(t *testing.T) {
	for name, text := range map[string]string{"nothing": "", "an error": `data: {"error":{"code":500}}` + "\n\n"} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan struct{}, 1)
			l := hollow(t, true, func(w http.ResponseWriter, r *http.Request) {
				sse(w, ": ping\n\n")
				select {
				case <-seen:
				case <-time.After(patience):
				case <-r.Context().Done():
				}
				sse(w, text)
			})
			failed := 0
			for i := range 60 {
				resp, err := l.send(t.Context(), "/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3],"max_tokens":2,"stream":true}`, i))
				if err != nil {
					t.Fatal(err)
				}
				first := make([]byte, len(": ping\n\n"))
				if _, err := io.ReadFull(resp.Body, first); err != nil {
					t.Fatal(err)
				}
				if string(first) == ": ping\n\n" {
					seen <- struct{}{}
					failed++
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			if h := l.model().Router.Health()[0]; failed == 0 || failed > 10 || h.LeftOut == 0 {
				t.Errorf("%d of 60 streams failed: %+v", failed, h)
			}
			l.idle()
		})
	}
}

// A stream of which only comments have come is gone on with by another engine where it breaks off
// or ends; one of which something else has come is not, nor is what cannot go on with it.
func TestStreamsThatBreakOffAfterComments(t *testing.T) {
	const ping, head = ": ping\n\n", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, c := range map[string]struct {
		text    string
		ends    bool // in order
		refused bool // the other engine calls it wrong
		whole   bool // the client gets all
	}{
		"breaks off":            {ping, false, false, true},
		"ends":                  {ping + ping, true, false, true},
		"in the middle of data": {ping + "data: {", false, false, false},
		"of a comment":          {": pi", false, false, false},
		"behind another event":  {ping + "event: hello\n\n", false, false, false},
		"behind a role":         {ping + `data: {"choices":[]}` + "\n\n", false, false, false},
		"behind an end":         {ping + "data: [DONE]\n\n", true, false, false},
		"and no other goes on":  {ping, false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan struct{}, 20)
			sick := func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close() //nolint:errcheck // it breaks off
				_, _ = fmt.Fprintf(conn, "%s%x\r\n%s\r\n", head, len(c.text), c.text)
				if c.ends {
					select { // else they may come with their end, and no client sees them
					case <-seen:
					case <-time.After(time.Second):
					}
					_, _ = io.WriteString(conn, "0\r\n\r\n")
				}
			}
			l := hollow(t, true, sick)
			if c.refused {
				other := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "{}", http.StatusBadRequest) })
				l.engines[1].http.Config.Handler = other
			}
			cut, on := 0, 0
			for i := range 20 {
				resp, err := l.send(t.Context(), "/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3],"max_tokens":2,"stream":true}`, i))
				if err != nil {
					t.Fatal(err)
				}
				data := make([]byte, len(c.text))
				n, err := io.ReadFull(resp.Body, data)
				if data = data[:n]; err == nil && string(data) == c.text {
					seen <- struct{}{}
				}
				if err == nil {
					var rest []byte
					rest, err = io.ReadAll(resp.Body)
					data = append(data, rest...)
				}
				_ = resp.Body.Close()
				_, done := streamed(strings.TrimPrefix(string(data), c.text))
				switch whole := err == nil && done && strings.Contains(string(data), `"choices":[{`); {
				case resp.StatusCode == http.StatusOK && !whole:
					cut++
				case whole && strings.Contains(string(data), c.text):
					on++
				}
			}
			if h := l.model().Router.Health()[0]; h.Failed == 0 || c.whole && (cut > 0 || on == 0) || !c.whole && (cut == 0 || on > 0) {
				t.Errorf("%d of 20 streams are cut, %d are gone on with, %+v", cut, on, h)
			}
			l.idle()
		})
	}
}

// deadlines is the answer to an HTTP/2 request, whose deadline for writing holds while nothing is written.
type deadlines struct {
	*httptest.ResponseRecorder
	by atomic.Pointer[time.Time]
}

// SetWriteDeadline is for http.ResponseController.
func (d *deadlines) SetWriteDeadline(by time.Time) error {
	d.by.Store(&by)
	return nil
}

// While another engine is to go on with a stream of HTTP/2, the time in which its client must take a part
// of the answer is not what that engine may take to give one.
func TestNoDeadlineWhileAnotherEngineGoesOn(t *testing.T) {
	l := hollow(t, true, func(w http.ResponseWriter, _ *http.Request) {
		sse(w, ": ping\n\n")
		panic(http.ErrAbortHandler)
	})
	asked := make(chan *deadlines, 1)
	well := l.engines[1].http.Config.Handler
	l.engines[1].http.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := <-asked
		if by := d.by.Load(); by == nil || !by.IsZero() {
			t.Errorf("the deadline is %v", by)
		}
		well.ServeHTTP(w, r)
	})
	on := 0
	for i := range 20 {
		d := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", strings.NewReader(fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3],"max_tokens":2,"stream":true}`, i)))
		r.ProtoMajor, r.ProtoMinor, r.RemoteAddr = 2, 0, "127.0.0.1:1"
		asked <- d
		l.proxy.ServeHTTP(d, r)
		text := d.Body.String()
		if _, done := streamed(strings.TrimPrefix(text, ": ping\n\n")); !done {
			t.Errorf("%q", text)
		}
		if strings.HasPrefix(text, ": ping") {
			on++
		}
		select {
		case <-asked: // nobody was
			t.Error("no engine goes on")
		default:
		}
	}
	if on == 0 {
		t.Error("no stream was gone on with")
	}
}

// A wait that ends just as the answer begins has cut it, unless it is there whole. It may be
// begun again, and what was due before ends it no more.
func TestWaitsThatEndAsAnswersBegin(t *testing.T) {
	wait := new(wait)
	for _, c := range []struct {
		first time.Duration
		err   error // with the beginning
		want  string
	}{{time.Nanosecond, nil, waitLate}, {time.Nanosecond, io.EOF, ""}, {time.Hour, nil, ""}} {
		p := &Proxy{cfg: Config{FirstByte: c.first}}
		ctx, cancel := context.WithCancel(t.Context())
		p.await(wait, &call{m: new(fleet.Model)}, route.Whole, &route.Answer{}, cancel)
		if c.first < time.Hour {
			<-ctx.Done()
		} else {
			wait.due()
		}
		if got := (&stream{err: c.err, wait: wait}).cutBy(); got != c.want {
			t.Errorf("%v, %v: %q", c.first, c.err, got)
		}
		cancel()
	}
}

func sse(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, text)
	_ = http.NewResponseController(w).Flush()
}

// A prefill engine that answers well, and with nothing, is no idle one either.
func TestPrefillsThatSayNothing(t *testing.T) {
	for _, text := range []string{"", "{}", `{"choices":[{}]}`} {
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, text)
		}))
		t.Cleanup(h.Close)
		l := newLab(t, setup{engines: 3, engine: func(i int, c *mockapi.Config) { c.Transfer, c.Prefill = mockapi.TransferVLLM, i < 2 }, registry: func(i int, w *registry.Worker) {
			w.KVTransfer, w.Role = registry.TransferVLLM, registry.Prefill
			if i == 2 {
				w.Role = registry.Decode
			} else if i == 0 {
				w.Endpoints.HTTP = h.URL
			}
		}})
		for i := range 40 {
			if status, data, _ := l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":[%d,2,3],"max_tokens":2}`, i)); status != 200 {
				t.Fatal(status, data)
			}
		}
		if h := l.model().Router.Health()[0]; h.LeftOut == 0 {
			t.Errorf("%q: %+v", text, h)
		}
	}
}
