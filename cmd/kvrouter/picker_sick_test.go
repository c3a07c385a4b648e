package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
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
				more := ask1(n)
				if drawn += more; drawn > 30 || n > 1000 {
					t.Fatalf("it draws %d of %d requests and is not left out", drawn, n)
				}
				out = more > 0 && leftOut()
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
