package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/gateway"
	"github.com/kvatlas/kvatlas/internal/extproc"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// addresses is a log handler that notes where gateways are answered.
type addresses struct {
	slog.Handler
	found chan string
}

func (a *addresses) Enabled(context.Context, slog.Level) bool { return true }

func (a *addresses) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "answering gateways" {
		r.Attrs(func(at slog.Attr) bool { a.found <- at.Value.String(); return true })
	}
	return nil
}

func (a *addresses) WithAttrs([]slog.Attr) slog.Handler { return a }

// startPicker runs a router that is a picker, with workers that nobody asks.
func startPicker(t *testing.T, workers int, args ...string) (c *gateway.Client, url string, engines []string) {
	t.Helper()
	for i := range workers {
		engines = append(engines, fmt.Sprintf("10.0.0.%d:8000", i+1))
	}
	log := &addresses{slog.DiscardHandler, make(chan string, 1)}
	if workers > 0 {
		args = append(args, "--engines=http://"+strings.Join(engines, ",http://"), "--model=m", "--block-size=4")
	}
	url, stop := startLogged(t, slog.New(log), append([]string{"--nats=none", "--kv-events=false", "--picker-listen=127.0.0.1:0", "--health-every=0s", "--models-every=0s", "--picker-trial=0s", "--inflight-share=1", "--body-share=1"}, args...)...)
	return dial(t, <-log.found, nil, stop), url, engines
}

// dial returns a gateway of the picker there. stop is called when it has closed.
func dial(t *testing.T, address string, speak *tls.Config, stop func()) *gateway.Client {
	t.Helper()
	c, err := gateway.Dial(address, speak)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		stop()
	})
	return c
}

// load is what /v1/loads says of a rank.
type load struct {
	Worker   int `json:"worker_id"`
	Requests int `json:"active_requests"`
	Prefill  int `json:"active_prefill_tokens"`
}

func loads(t *testing.T, url string) (list []load) {
	t.Helper()
	status, text, _ := ask(http.MethodGet, url+"/v1/loads", "")
	if err := json.Unmarshal([]byte(text), &list); err != nil || status != http.StatusOK {
		t.Fatal(status, text, err)
	}
	return list
}

// booked returns the requests of each engine of startPicker.
func booked(t *testing.T, url string) map[string]int {
	t.Helper()
	at := make(map[string]int)
	for _, l := range loads(t, url) {
		at[fmt.Sprintf("10.0.0.%d:8000", l.Worker+1)] += l.Requests
	}
	return at
}

// bookings returns how many requests and blocks the router has on its workers.
func bookings(t *testing.T, url string) (requests, prefill int) {
	t.Helper()
	for _, l := range loads(t, url) {
		requests, prefill = requests+l.Requests, prefill+l.Prefill
	}
	return requests, prefill
}

func noBookings(t *testing.T, url string) {
	t.Helper()
	waittest.Until(t, func() error {
		if requests, tokens := bookings(t, url); requests+tokens > 0 {
			return fmt.Errorf("%d requests and %d tokens are still booked", requests, tokens)
		}
		return nil
	})
}

// prompt returns a request's body of n bytes or, where JSON takes more, of as many as that.
func prompt(n int) []byte {
	b := []byte(`{"model":"m","stream":true,"prompt":"`)
	return append(append(b, bytes.Repeat([]byte("abcdefgh"), n/8+1)[:max(n-len(b)-2, 1)]...), `"}`...)
}

func answerOf() [][]byte {
	return [][]byte{
		[]byte("data: {\"choices\":[{\"text\":\"a\"}]}\n\n"),
		[]byte("data: {\"choices\":[{\"text\":\"b\"}],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":2,\"total_tokens\":22}}\n\ndata: [DONE]\n\n"),
	}
}

// handovers are the headers by which engines, or who is before them, are told whom to connect to.
var handovers = []string{"x-prefiller-host-port", "x-prefiller-url", "x-encoder-hosts-ports", "x-data-parallel-host-port", "x-kv-cache-source-host-port"}

// As a gateway's bodies come, so they go on: whatever their size and pieces.
func TestPickerBodies(t *testing.T) {
	c, url, engines := startPicker(t, 3)
	for _, size := range []int{1, 60, 1 << 10, 61_999, 62_000, 62_001, 124_000, 220_000, 10 << 20} {
		for _, part := range []int{1, 7, 4 << 10, 64 << 10, 1 << 30} {
			if size/part > 2000 {
				continue
			}
			for _, how := range []string{"whole", "trailers", "silent", "buffered"} {
				if how == "buffered" && size/part > 0 {
					continue
				}
				r := &gateway.Request{Path: "/v1/completions", Body: prompt(size), Part: part, Answer: answerOf(), Trailers: how == "trailers", Silent: how == "silent", Buffered: how == "buffered",
					Headers: []extproc.Header{{Name: "content-type", Value: "application/json"}}}
				for _, name := range handovers {
					r.Headers = append(r.Headers, extproc.Header{Name: name, Value: "169.254.169.254:80"})
				}
				got, err := c.Do(t.Context(), r)
				if err != nil || got.Status != 0 {
					t.Fatalf("%d bytes by %d, %s: %v, %d %s", size, part, how, err, got.Status, got.Text)
				}
				if !bytes.Equal(got.Body, r.Body) || !slices.Contains(engines, got.Endpoint) || got.Told != got.Endpoint || slices.ContainsFunc(handovers, func(name string) bool { return !slices.Contains(got.Remove, name) }) {
					t.Fatalf("%d bytes by %d, %s: %d bytes go to %q (%q), without %q", size, part, how, len(got.Body), got.Endpoint, got.Told, got.Remove)
				}
			}
		}
	}
	noBookings(t, url)
}

// A request may end at each of its messages, by a reset or as if that were all.
func TestPickerCuts(t *testing.T) {
	c, url, _ := startPicker(t, 3)
	for _, closes := range []bool{false, true} {
		for cut := 1; ; cut++ {
			r := &gateway.Request{Path: "/v1/completions", Body: prompt(20_000), Part: 6000, Answer: answerOf(), Cut: cut, Close: closes}
			got, err := c.Do(t.Context(), r)
			if err == nil {
				if got.Status != 0 || cut < 6 {
					t.Error(cut, got.Status)
				}
				break
			}
			if !errors.Is(err, gateway.ErrCut) {
				t.Fatal(cut, err)
			}
		}
	}
	noBookings(t, url)
}

// Two thousand at once, of which some never end by themselves.
func TestPickerManyAtOnce(t *testing.T) {
	c, url, engines := startPicker(t, 8)
	const many = 2000
	var all sync.WaitGroup
	var mu sync.Mutex
	at := map[string]int{}
	body := prompt(4000)
	for i := range many {
		all.Go(func() {
			r := &gateway.Request{Path: "/v1/completions", Body: body, Part: 1000, Answer: answerOf()}
			if i%4 == 0 {
				r.Cut, r.Close = 1+i/4%8, i%8 == 0
			}
			got, err := c.Do(t.Context(), r)
			if err != nil && !errors.Is(err, gateway.ErrCut) || got.Status != 0 {
				t.Error(i, err, got.Status, string(got.Text))
			}
			mu.Lock()
			defer mu.Unlock()
			at[got.Endpoint]++
		})
	}
	all.Wait()
	if len(slices.DeleteFunc(slices.Collect(maps.Keys(at)), func(e string) bool { return e == "" })) != len(engines) {
		t.Error(at)
	}
	noBookings(t, url)
}

// While the answer comes, the request is booked; its usage is the tenant's.
func TestPickerFollowsTheAnswer(t *testing.T) {
	c, url, _ := startPicker(t, 2)
	r := &gateway.Request{Path: "/v1/completions", Body: prompt(2000), Answer: answerOf()}
	if _, err := c.Do(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, func() error {
		_, text, _ := ask(http.MethodGet, url+"/metrics", "")
		for _, want := range []string{
			`kvatlas_router_tenant_tokens_total{model="m",block_size="4",group="",tenant="anonymous",kind="output"} 2`,
			`kvatlas_router_requests_total{outcome="ok"} 1`, "kvatlas_picker_streams 0",
		} {
			if !strings.Contains(text, want) {
				return errors.New("not there: " + want)
			}
		}
		return nil
	})
}

// Where the endpoint that was told first did not serve, the booking is that one's which did.
func TestPickerServedElsewhere(t *testing.T) {
	c, url, engines := startPicker(t, 2, "--picker-fallbacks=4", "--picker-scores")
	r := &gateway.Request{Path: "/v1/completions", Body: prompt(4000), Answer: answerOf()}
	r.Picked = func(got *gateway.Result) {
		list := strings.Split(got.Endpoint, ",")
		if len(list) != 2 || list[0] == list[1] || !slices.Contains(engines, list[1]) || got.Told != got.Endpoint {
			t.Errorf("%q %q", list, got.Told)
		}
		if len(got.Scores) != 2 || max(got.Scores[0].Score, got.Scores[1].Score) != 1 || min(got.Scores[0].Score, got.Scores[1].Score) < 0 {
			t.Error(got.Scores)
		}
		r.Served = list[1]
	}
	r.Heard = func() {
		waittest.Until(t, func() error {
			if got := booked(t, url)[r.Served]; got != 1 {
				return fmt.Errorf("%d requests are booked at %s", got, r.Served)
			}
			return nil
		})
		if n, _ := bookings(t, url); n != 1 {
			t.Error(n, "are booked")
		}
	}
	if _, err := c.Do(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	noBookings(t, url)
}

// What the picker says itself is an ImmediateResponse.
func TestPickerRefuses(t *testing.T) {
	c, url, engines := startPicker(t, 2, "--busy-prefill-tokens=500", "--picker-objectives=batch=-1,chat=10", "--queue=10", "--queue-timeout=10s")
	do := func(r *gateway.Request) *gateway.Result {
		t.Helper()
		got, err := c.Do(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	post := func(r gateway.Request) *gateway.Request {
		r.Path, r.Body, r.Answer = "/v1/completions", prompt(40), answerOf()
		return &r
	}
	if got := do(post(gateway.Request{Subsets: true})); got.Status != http.StatusServiceUnavailable {
		t.Error("an empty subset:", got.Status)
	}
	if got := do(post(gateway.Request{Subsets: true, Subset: []string{"10.9.9.9:8000"}})); got.Status != http.StatusServiceUnavailable {
		t.Error("a subset of others:", got.Status, string(got.Text))
	}
	for _, subset := range [][]string{{engines[1]}, {"10.9.9.9:1", engines[1]}, {"10.0.0.2"}} {
		for range 5 {
			if got := do(post(gateway.Request{Subsets: true, Subset: subset})); got.Endpoint != engines[1] {
				t.Error(subset, got.Endpoint, got.Status)
			}
		}
	}
	for path, want := range map[string]int{"/metrics": 404, "/v1/loads": 404, "/console/": 404, "/v1/select": 404, "/v1/load_lora_adapter": 404, "/v1/models": 200} {
		if got := do(&gateway.Request{Method: "GET", Path: path}); got.Status != want {
			t.Error(path, got.Status)
		}
	}
	if got := do(&gateway.Request{Path: "/v1/completions", Body: []byte(`{"model":"other","prompt":"x"}`)}); got.Status != http.StatusNotFound {
		t.Error("another model:", got.Status)
	}
	if got := do(&gateway.Request{Path: "/v1/completions", Body: []byte(`{"model":`)}); got.Status != http.StatusBadRequest {
		t.Error("no JSON:", got.Status)
	}
	noBookings(t, url)

	// Both engines have more to compute than they may: what may not wait is shed.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	var held sync.WaitGroup
	for range 2 {
		held.Go(func() {
			got, err := c.Do(ctx, &gateway.Request{Path: "/v1/completions", Body: prompt(8000), Picked: func(*gateway.Result) { <-ctx.Done() }})
			if err == nil {
				t.Error("it was not held:", got.Status, string(got.Text))
			}
		})
		waittest.Until(t, func() error {
			if n, _ := bookings(t, url); n == 0 {
				return errors.New("nothing is booked")
			}
			return nil
		})
	}
	waittest.Until(t, func() error {
		if n, _ := bookings(t, url); n != 2 {
			return fmt.Errorf("%d are booked", n)
		}
		return nil
	})
	shed := post(gateway.Request{Headers: []extproc.Header{{Name: "x-gateway-inference-objective", Value: "batch"}}})
	if got := do(shed); got.Status != http.StatusTooManyRequests || got.Own["retry-after"] == "" {
		t.Error("overloaded:", got.Status, got.Own)
	}
	waits := post(gateway.Request{Headers: []extproc.Header{{Name: "x-gateway-inference-objective", Value: "chat"}}})
	held.Go(func() {
		defer cancel()
		waittest.Until(t, func() error {
			_, text, _ := ask(http.MethodGet, url+"/metrics", "")
			if !strings.Contains(text, `kvatlas_router_queue_length{model="m",block_size="4",group=""} 1`) {
				return errors.New("nobody waits")
			}
			return nil
		})
	})
	if got := do(waits); got.Status != 0 {
		t.Error("one that may wait:", got.Status, string(got.Text))
	}
	held.Wait()
	noBookings(t, url)
}

func TestPickerHealth(t *testing.T) {
	c, _, _ := startPicker(t, 1)
	for service, want := range map[string]extproc.Serving{"": extproc.IsServing, "liveness": extproc.IsServing, "readiness": extproc.IsServing, extproc.Service: extproc.IsServing, "other": 0} {
		if got, err := c.Health(t.Context(), service); got != want || (err != nil) != (want == 0) {
			t.Error(service, got, err)
		}
	}
}

// Where others compute prompts, the decode worker's sidecar is told whom to ask.
func TestPickerPrefill(t *testing.T) {
	c, url, _ := startPicker(t, 1, "--prefill-engines=http://10.0.1.1:8000")
	got, err := c.Do(t.Context(), &gateway.Request{Path: "/v1/completions", Body: prompt(4000), Answer: answerOf()})
	if err != nil || got.Set["x-prefiller-host-port"] != "10.0.1.1:8000" || got.Endpoint != "10.0.0.1:8000" {
		t.Errorf("%v %v %d %s", err, got.Set, got.Status, got.Text)
	}
	noBookings(t, url)
}

// Ranks on ports of their own are endpoints of their own, of which a subset may name some.
func TestPickerRanks(t *testing.T) {
	list := filepath.Join(t.TempDir(), "workers.json")
	text := `[{"worker_id":"7","model":"m","block_size":4,"dp_ranks":[2,3,4],"transport":"none","endpoints":{"http":"http://10.0.2.1:8000"}}]`
	if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, ports := range []string{"--picker-rank-ports=8000,8001,8002", ""} {
		args := []string{"--registry-workers=" + list}
		if ports != "" {
			args = append(args, ports)
		}
		c, url, _ := startPicker(t, 0, args...)
		for _, subset := range []string{"10.0.2.1:8001", "10.0.2.1:8002"} {
			got, err := c.Do(t.Context(), &gateway.Request{Path: "/v1/completions", Body: prompt(400), Answer: answerOf(), Subsets: ports != "", Subset: []string{subset}})
			switch {
			case err != nil || got.Status != 0:
				t.Fatal(err, got.Status, string(got.Text))
			case ports != "" && (got.Endpoint != subset || got.Set["x-data-parallel-rank"] != ""):
				t.Errorf("%s: %v", subset, got.Set)
			case ports == "" && (got.Endpoint != "10.0.2.1:8000" || got.Set["x-data-parallel-rank"] == ""):
				t.Errorf("without ports: %v", got.Set)
			}
		}
		noBookings(t, url)
	}
}
