package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/internal/router/accesslog"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route/account"
)

// mixed are engines that do what a request's field how says, and say of each answer whose it is.
type mixed struct {
	live     atomic.Int64
	attempts sync.Map // by mark: *atomic.Int64
}

var (
	marks = regexp.MustCompile(`mark-\d+-`)
	hows  = [...]string{"whole", "whole", "chunked", "stream", "stream", "pings", "fails", "drops", "nothing", "wrong", "heads", "early", "closes", "breaks", "stalls", "head", "text", "long", "longer"}
)

// markOf returns a request's mark, and how many tokens its prompt has, and its answer.
func markOf(n int) (mark string, prompt, output int) {
	return fmt.Sprintf("mark-%d-", n), 8 + n%11, 1 + n%5
}

func (x *mixed) serve(i int, w http.ResponseWriter, r *http.Request) {
	x.live.Add(1)
	defer x.live.Add(-1)
	data, _ := io.ReadAll(r.Body)
	mark := string(marks.Find(data))
	if r.Method == http.MethodHead {
		mark = r.Header.Get("X-Mine")
	}
	n, _ := strconv.Atoi(strings.Trim(mark, "mark-"))
	_, prompt, output := markOf(n)
	if r.URL.Path == pathTokenize {
		tokens := make([]int, prompt)
		for j := range tokens {
			tokens[j] = 100*n + j
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"tokens": tokens})
		return
	}
	var q struct{ How string }
	_ = json.Unmarshal(data, &q) // none with HEAD
	count, _ := x.attempts.LoadOrStore(mark, new(atomic.Int64))
	again := count.(*atomic.Int64).Add(1) > 1 //nolint:forcetypeassert // it holds nothing else
	h := w.Header()
	h.Set("X-Engine", strconv.Itoa(i))
	h.Set("X-Saw", strings.Join(r.Header["X-Mine"], "")+strings.Join(r.Header[headerRequest], ""))
	h["X-Twice"] = []string{mark, mark}
	h.Set(fmt.Sprintf("X-Opt-%d", n%7), mark+r.Header.Get(fmt.Sprintf("X-Ask-%d", n%5)))
	stream := func(n int) {
		h.Set("Content-Type", "text/event-stream")
		for range n {
			sse(w, fmt.Sprintf("data: {\"choices\":[{\"text\":%q}]}\n\n", mark))
		}
	}
	whole := func() {
		h.Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"choices":[{"text":%q}],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`, mark, prompt, output)
	}
	done := func() {
		stream(output)
		sse(w, fmt.Sprintf("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", prompt, output))
	}
	switch {
	case r.Method == http.MethodHead:
		h.Set("Content-Length", strconv.Itoa(n))
	case q.How == "chunked":
		_, _ = io.WriteString(w, " ")
		_ = http.NewResponseController(w).Flush()
		whole()
	case q.How == "pings" && !again:
		h.Set("Content-Type", "text/event-stream")
		sse(w, ": ping\n\n")
		panic(http.ErrAbortHandler)
	case q.How == "fails" && !again:
		http.Error(w, mark, http.StatusInternalServerError)
	case q.How == "drops" && !again, q.How == "breaks":
		if q.How == "breaks" {
			stream(output)
		}
		panic(http.ErrAbortHandler)
	case q.How == "nothing" && !again:
	case q.How == "stream", q.How == "nothing", q.How == "pings":
		done()
	case q.How == "stalls":
		stream(1)
		<-r.Context().Done()
	case q.How == "wrong":
		http.Error(w, `{"error":"`+mark+`"}`, http.StatusBadRequest)
	case q.How == "heads":
		for j := range 80 {
			h.Set(fmt.Sprintf("X-Many-%d", j), mark)
		}
		whole()
	case q.How == "early":
		w.WriteHeader(http.StatusEarlyHints)
		whole()
	case q.How == "closes":
		h.Set("Connection", "close")
		whole()
	default:
		whole()
	}
}

// mixedClient sends requests on one connection after another, several at once on each.
type mixedClient struct {
	*lab
	rng   *rand.Rand
	token string
	conn  net.Conn
	in    *bufio.Reader
	whole int
	was   map[string]string // of whole answers, by mark: how, and the worker
}

// write writes request n, and returns how it is to be answered, and by what method it is asked.
func (c *mixedClient) write(w io.Writer, n int) (how, method string) {
	mark, prompt, _ := markOf(n)
	how, method = hows[c.rng.IntN(len(hows))], http.MethodPost
	head := fmt.Sprintf("Host: h\r\n%s: %s\r\nX-Mine: %s\r\nX-Ask-%d: %s\r\nAuthorization: Bearer %s\r\n", headerRequest, mark, mark, n%5, mark, c.token)
	if how == "head" {
		_, _ = fmt.Fprintf(w, "HEAD /echo HTTP/1.1\r\n%s\r\n", head)
		return how, http.MethodHead
	}
	asked := `"` + mark + `"`
	if how != "text" {
		list := make([]string, prompt)
		for i := range list {
			list[i] = strconv.Itoa(c.rng.IntN(3))
		}
		asked = "[" + strings.Join(list, ",") + "]"
	}
	pad := map[string]int{"long": 20 << 10, "longer": 70 << 10}[how]
	streams := how == "stream" || how == "pings" || how == "nothing" || how == "breaks" || how == "stalls"
	body := fmt.Sprintf(`{"model":%q,"prompt":%s,"stream":%t,"user":%q,"how":%q,"pad":"%s"}`, modelName, asked, streams, mark, how, strings.Repeat("x", pad))
	_, _ = fmt.Fprintf(w, "POST /v1/completions HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
	return how, method
}

// some sends requests from n on, and reports whether the connection is good for more.
func (c *mixedClient) some(n, most int) bool {
	var out bytes.Buffer
	var all [][2]string
	for i := range 1 + c.rng.IntN(most) {
		how, method := c.write(&out, n+i)
		all = append(all, [2]string{how, method})
	}
	if _, err := c.conn.Write(out.Bytes()); err != nil {
		return false // it was closed after the answer before
	}
	for i, x := range all {
		resp, err := http.ReadResponse(c.in, &http.Request{Method: x[1]})
		if err != nil {
			return false // the one before broke off
		}
		if !c.check(n+i, x[0], resp) || resp.Close {
			return false // the connection is closed: to close the body would read it to its end
		}
	}
	return true
}

func (c *mixedClient) check(n int, how string, resp *http.Response) (more bool) {
	mark, _, output := markOf(n)
	h := resp.Header
	if got := h[headerRequest]; len(got) != 1 || got[0] != mark {
		c.t.Errorf("%s %s is called %q", how, mark, got)
	}
	if how == "stalls" && resp.StatusCode == http.StatusOK {
		return false // the client leaves
	}
	data, err := io.ReadAll(resp.Body)
	for _, of := range marks.FindAllString(string(data), -1) {
		if of != mark {
			c.t.Errorf("%s %s gets the answer of %s", how, mark, of)
		}
	}
	if h.Get("X-Engine") == "" { // the router's own
		if resp.StatusCode < 500 {
			c.t.Errorf("%s %s: %d %q", how, mark, resp.StatusCode, data)
		}
		return err == nil
	}
	opts := 0
	for name := range h {
		if strings.HasPrefix(name, "X-Opt-") || strings.HasPrefix(name, "X-Many-") && how != "heads" {
			opts++
		}
	}
	want := mark + mark
	if opts != 1 || h.Get("X-Saw") != want || h.Get(fmt.Sprintf("X-Opt-%d", n%7)) != want || strings.Join(h["X-Twice"], "") != want || h.Get("X-Many-79") != map[bool]string{true: mark}[how == "heads"] {
		c.t.Errorf("%s %s: %v", how, mark, h)
	}
	if err != nil {
		if how != "breaks" && how != "pings" {
			c.t.Errorf("%s %s: %v after %q", how, mark, err, data)
		}
		return false
	}
	if resp.StatusCode == http.StatusOK && how != "head" {
		texts := map[bool]int{true: output, false: 1}[strings.HasPrefix(h.Get("Content-Type"), "text/event-stream")]
		if got := bytes.Count(data, []byte(mark)); got != texts || how == "breaks" {
			c.t.Errorf("%s %s has %d texts, not %d: %q", how, mark, got, texts, data)
		}
		if how != "pings" && h.Get(headerWorker) != h.Get("X-Engine") {
			c.t.Errorf("%s %s: engine %s, of worker %s", how, mark, h.Get("X-Engine"), h.Get(headerWorker))
		}
		c.decision(mark, n, h)
		c.was[mark] = how + " " + h.Get(headerWorker)
		c.whole++
	}
	return true
}

// decision checks that what the answer's receipt names is the request's own.
func (c *mixedClient) decision(mark string, n int, h http.Header) {
	_, id, _ := strings.Cut(h.Get(headerReceipt), `decision="`)
	list := c.proxy.cfg.Decisions.Find(account.Query{ID: strings.TrimSuffix(id, `"`)})
	if _, prompt, _ := markOf(n); id != "" && len(list) == 1 && (list[0].RequestID != mark || list[0].Prompt != prompt || strconv.FormatUint(list[0].Worker, 10) != h.Get(headerWorker)) {
		c.t.Errorf("%s has the decision %+v", mark, list[0])
	}
}

// Requests of all kinds, one after another and several at once on few connections, to engines that fail
// in all ways: each has its own answer, headers, name, tenant, decision and line of the access log, and
// nothing goes on when all have ended.
func TestEachHasItsOwn(t *testing.T) {
	for name, logged := range map[string]bool{"kept": false, "logged": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // much of it is waiting
			x := new(mixed)
			var text bytes.Buffer
			log := accesslog.New(&text, 1<<26, slog.New(slog.DiscardHandler))
			l := newLab(t, setup{
				engines: 4,
				fleet: func(c *fleet.Config) {
					c.Unhealthy = 1 << 20
					c.Decisions = account.New(account.Config{Keep: 1 << 14, Memory: 1 << 26, Rows: 1 << 20, Run: "t"})
				},
				proxy: func(c *Config) {
					if c.RetryShare, c.RetryBurst = 1, 1<<20; logged {
						c.AccessLog = log
						c.Access = access(t, "[{token: client-0-456789abcdef, role: reader, name: client-0}, {token: client-1-456789abcdef, role: reader, name: client-1}, {token: client-2-456789abcdef, role: reader, name: client-2}]")
					}
				},
				registry: func(i int, w *registry.Worker) {
					s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { x.serve(i, w, r) }))
					s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
					t.Cleanup(s.Close)
					w.Endpoints.HTTP = s.URL
				},
			})
			const clients, each, most = 3, 60, 3
			var all [clients]mixedClient
			var wg sync.WaitGroup
			for i := range all {
				c := &all[i]
				*c = mixedClient{lab: l, rng: rand.New(rand.NewPCG(1, uint64(i))), token: fmt.Sprintf("client-%d-456789abcdef", i), was: make(map[string]string)} //nolint:gosec // seeded
				wg.Go(func() {
					for n := i * (each + most); n < i*(each+most)+each; n += most {
						if c.conn == nil {
							var err error
							if c.conn, err = net.Dial("tcp", strings.TrimPrefix(l.front.URL, "http://")); err != nil { //nolint:noctx // the front is near
								t.Error(err)
								return
							}
							c.in = bufio.NewReader(c.conn)
						}
						if !c.some(n, most) {
							_ = c.conn.Close()
							c.conn = nil
						}
					}
					if c.conn != nil {
						_ = c.conn.Close()
					}
				})
			}
			wg.Wait()
			l.idle()
			waittest.Until(t, func() error {
				if n, m := x.live.Load(), l.proxy.spool.Stats().Memory; n != 0 || m != 0 || l.proxy.InFlight() != 0 {
					return fmt.Errorf("engines answer %d requests still, and %d bytes of bodies are there", n, m)
				}
				return nil
			})
			_ = l.front.Shutdown(context.Background())
			if err := log.Close(); err != nil {
				t.Fatal(err)
			}
			lines := make(map[string]string)
			for line := range strings.Lines(text.String()) {
				var e struct {
					ID                     string `json:"request_id"`
					Tenant, Worker, Method string
					Prompt                 int `json:"prompt_tokens"`
					Output                 int `json:"output_tokens"`
					Status                 int
				}
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					t.Fatal(err)
				}
				lines[e.ID] = fmt.Sprint(e.Tenant, " ", e.Worker, " ", e.Prompt, " ", e.Output, " ", e.Status)
			}
			for i := range all {
				if all[i].whole < each/8 {
					t.Errorf("client %d has %d whole answers only", i, all[i].whole)
				}
				for mark, was := range all[i].was {
					n, _ := strconv.Atoi(strings.Trim(mark, "mark-"))
					_, prompt, output := markOf(n)
					how, worker, _ := strings.Cut(was, " ")
					want := fmt.Sprintf("client-%d %s %d %d 200", i, worker, prompt, output)
					if got := lines[mark]; logged && got != want && how != "pings" {
						t.Errorf("%s %s is logged as %q, not %q", how, mark, got, want)
					}
				}
			}
		})
	}
}
