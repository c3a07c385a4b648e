package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/bench/gateway"
	"github.com/kvatlas/kvatlas/internal/extproc"
)

// An engine that calls all its requests wrong, or whose exchanges always end before a token, answers at
// once and looks idle; another cannot be asked, as kvrouter itself would. What the others serve tells.
func TestPickerSickEngine(t *testing.T) {
	for kind, sick := range map[string]func(r *gateway.Request, got *gateway.Result){
		"404": func(r *gateway.Request, _ *gateway.Result) {
			r.Status, r.Answer = http.StatusNotFound, [][]byte{[]byte("{}")}
		},
		"an error of status 400 in a stream": func(r *gateway.Request, _ *gateway.Result) {
			r.Answer = [][]byte{[]byte("data: {\"error\":{\"code\":400}}\n\ndata: [DONE]\n\n")}
		},
		"an end behind its first token, as Envoy tells of a reset": func(r *gateway.Request, got *gateway.Result) { r.Cut, r.Close = got.Messages+2, true },
		"a reset behind the head":                                  func(r *gateway.Request, got *gateway.Result) { r.Cut = got.Messages + 1 },
	} {
		t.Run(kind, func(t *testing.T) {
			c, url, engines := startPicker(t, 3)
			ask1 := func(i int) (drawn int) {
				t.Helper()
				r := &gateway.Request{Path: "/v1/completions", Answer: answerOf(), Headers: []extproc.Header{{Name: "content-type", Value: "application/json"}},
					Body: fmt.Appendf(nil, `{"model":"m","stream":true,"prompt":"question %d, which nobody has asked"}`, i)}
				r.Picked = func(got *gateway.Result) {
					if got.Endpoint == engines[0] {
						drawn = 1
						sick(r, got)
					}
				}
				if got, err := c.Do(t.Context(), r); err != nil && !errors.Is(err, gateway.ErrCut) || got.Status != 0 {
					t.Fatal(err, got.Status, string(got.Text))
				}
				return drawn
			}
			leftOut := func() bool {
				_, text, _ := ask(http.MethodGet, url+"/metrics", "")
				return strings.Contains(text, `kvatlas_router_left_out_total{model="m",block_size="4",group="",worker="0",reason="failing"} 1`)
			}
			n, drawn := 0, 0
			for out := false; !out; n++ {
				if drawn += ask1(n); drawn > 30 || n > 1000 {
					t.Fatalf("it draws %d of %d requests and is not left out", drawn, n)
				}
				out = drawn >= 3 && leftOut() // how the last one ended may yet be on its way
			}
			drawn = 0
			for i := range 30 {
				drawn += ask1(n + i)
			}
			if drawn > 5 { // now and then one to try it
				t.Errorf("it draws %d of 30 requests while it is left out", drawn)
			}
		})
	}
}

// Clients may cut what they like. One of them alone, whatever it cuts, has no engine left out at which another's
// answer goes on, and who cuts an answer behind its end is not counted.
func TestPickerHostileCuts(t *testing.T) {
	answer := append(answerOf(), []byte("\n"))
	for name, parts := range map[string]int{"at the first token": 2, "behind the end": len(answer)} {
		t.Run(name, func(t *testing.T) {
			c, url, engines := startPicker(t, 3)
			ask1 := func(ctx context.Context, source string, i int, change func(r *gateway.Request, got *gateway.Result)) {
				r := &gateway.Request{Path: "/v1/completions", Answer: answer, Source: source, Subset: engines[:1], Subsets: i >= 100,
					Body: fmt.Appendf(nil, `{"model":"m","stream":true,"prompt":"question %d, which nobody has asked"}`, i)}
				r.Picked = func(got *gateway.Result) { change(r, got) }
				if got, err := c.Do(ctx, r); err != nil && !errors.Is(err, gateway.ErrCut) || got.Status != 0 {
					t.Error(err, got.Status, string(got.Text))
				}
			}
			for i := range 60 {
				ask1(t.Context(), "10.9.0.1:1", i, func(*gateway.Request, *gateway.Result) {})
			}
			var under sync.WaitGroup
			defer under.Wait()
			over := make(chan struct{})
			defer close(over)
			if parts == 2 { // one answer of another client's goes on there
				began := make(chan struct{})
				under.Go(func() {
					ask1(context.WithoutCancel(t.Context()), "10.9.0.1:1", 100, func(r *gateway.Request, _ *gateway.Result) {
						r.Heard = func() { close(began); <-over }
					})
				})
				<-began
			}
			for i := range 20 {
				ask1(t.Context(), "10.9.0.2:1", 1000+i, func(r *gateway.Request, got *gateway.Result) { r.Cut, r.Close = got.Messages+parts, true })
			}
			if _, text, _ := ask(http.MethodGet, url+"/metrics", ""); !strings.Contains(text, `kvatlas_router_left_out_total{model="m",block_size="4",group="",worker="0",reason="failing"} 0`) {
				t.Error("it is left out")
			}
		})
	}
}

// Who of a pair fails is not said: a prefill worker whose pairs all fail gets no more, nor does such a decode
// worker, and who was well with others gets the requests.
func TestPickerSickPair(t *testing.T) {
	for name, sick := range map[string]string{"prefill": "10.0.1.1:8000", "decode": "10.0.0.1:8000"} {
		t.Run(name, func(t *testing.T) {
			c, _, _ := startPicker(t, 2, "--prefill-engines=http://10.0.1.1:8000,http://10.0.1.2:8000")
			failed := 0
			for i := range 60 {
				r := &gateway.Request{Path: "/v1/completions", Answer: answerOf(), Body: fmt.Appendf(nil, `{"model":"m","stream":true,"prompt":[%s%d]}`, strings.Repeat(fmt.Sprint(i, ","), 2000), i)}
				r.Picked = func(got *gateway.Result) {
					if got.Endpoint == sick || got.Set["x-prefiller-host-port"] == sick {
						failed++
						r.Status, r.Answer = http.StatusBadGateway, [][]byte{[]byte("{}")}
					}
				}
				if got, err := c.Do(t.Context(), r); err != nil || got.Status != 0 {
					t.Fatal(err, got.Status, string(got.Text))
				}
			}
			if failed == 0 || failed > 10 {
				t.Errorf("%d of 60 requests meet the sick worker", failed)
			}
		})
	}
}
