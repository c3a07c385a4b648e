package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/bench/gateway"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// What is in flight at a sick engine is lost behind a gateway. So the router tries engines itself before clients'
// requests go there, at first as well as when one may be well again: no client meets the sick one, and it is
// used again once it is well.
func TestPickerTriesEngines(t *testing.T) {
	says := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, text)
		}
	}
	refuses := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "{}", status) }
	}
	const whole = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	for name, sick := range map[string]http.HandlerFunc{
		"500": refuses(http.StatusInternalServerError), "404": refuses(http.StatusNotFound), "503": refuses(http.StatusServiceUnavailable),
		"a token and an end": says("data: {\"choices\":[{\"text\":\"a\"}]}\n\n"), "nothing": says(""),
		"a reset": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			var well atomic.Bool
			var engines []string
			for i := range 3 {
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if i == 0 && !well.Load() {
						sick(w, r)
						return
					}
					says(whole)(w, r)
				}))
				t.Cleanup(s.Close)
				engines = append(engines, s.URL)
			}
			log := &addresses{slog.DiscardHandler, make(chan string, 1)}
			url, stop := startLogged(t, slog.New(log), "--nats=none", "--kv-events=false", "--picker-listen=127.0.0.1:0", "--health-every=0s", "--models-every=0s", "--inflight-share=1",
				"--body-share=1", "--engines="+strings.Join(engines, ","), "--model=m", "--block-size=4", "--picker-trial=1m", "--breaker-wait=10ms", "--breaker-max-wait=20ms")
			c := dial(t, <-log.found, nil, stop)
			var met atomic.Int64
			ask1 := func(i int64) {
				r := &gateway.Request{Path: "/v1/completions", Answer: answerOf(), Body: fmt.Appendf(nil, `{"model":"m","stream":true,"prompt":"question %d, which nobody has asked"}`, i)}
				r.Picked = func(got *gateway.Result) {
					if "http://"+got.Endpoint == engines[0] {
						if met.Add(1); !well.Load() {
							r.Status, r.Answer = http.StatusInternalServerError, [][]byte{[]byte("{}")}
						}
					}
				}
				if got, err := c.Do(t.Context(), r); err != nil && !errors.Is(err, gateway.ErrCut) || got.Status != 0 {
					t.Error(err, got.Status, string(got.Text))
				}
			}
			var next atomic.Int64
			var all sync.WaitGroup
			for range 24 {
				all.Go(func() {
					for i := next.Add(1); i <= 200; i = next.Add(1) {
						ask1(i)
					}
				})
			}
			all.Wait()
			if n := met.Load(); n > 0 {
				t.Errorf("%d of 200 requests go to the sick engine", n)
			}
			waittest.Until(t, func() error {
				if _, text, _ := ask(http.MethodGet, url+"/metrics", ""); !strings.Contains(text, `kvatlas_router_trials_total{result="well"} 2`+"\n") {
					return errors.New("the metrics do not say that two engines were tried well")
				}
				return nil
			})
			well.Store(true)
			waittest.Until(t, func() error {
				if ask1(next.Add(1)); met.Load() == 0 {
					return errors.New("it is well, and gets no requests")
				}
				return nil
			})
		})
	}
}

// However seldom requests come, none goes to an engine that has answered nothing and failed its trial, though that
// has not left it out.
func TestPickerTrialThatFails(t *testing.T) {
	var engines []string
	for i := range 2 {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if i == 0 {
				http.Error(w, "{}", http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
		}))
		t.Cleanup(s.Close)
		engines = append(engines, s.URL)
	}
	log := &addresses{slog.DiscardHandler, make(chan string, 1)}
	url, stop := startLogged(t, slog.New(log), "--nats=none", "--kv-events=false", "--picker-listen=127.0.0.1:0", "--health-every=0s", "--models-every=0s",
		"--engines="+strings.Join(engines, ","), "--model=m", "--block-size=4", "--picker-trial=10ms", "--breaker-failures=0", "--breaker-share=0")
	c := dial(t, <-log.found, nil, stop)
	met, i := 0, 0
	ask1 := func() {
		i++
		r := &gateway.Request{Path: "/v1/completions", Answer: answerOf(), Body: fmt.Appendf(nil, `{"model":"m","stream":true,"prompt":"question %d, which nobody has asked"}`, i)}
		r.Picked = func(got *gateway.Result) {
			if "http://"+got.Endpoint == engines[0] { // as it may at first, where the trial takes longer than it may
				met++
				r.Status, r.Answer = http.StatusInternalServerError, [][]byte{[]byte("{}")}
			}
		}
		if got, err := c.Do(t.Context(), r); err != nil && !errors.Is(err, gateway.ErrCut) || got.Status != 0 {
			t.Error(err, got.Status, string(got.Text))
		}
	}
	ended := func(result string) (n int) {
		_, text, _ := ask(http.MethodGet, url+"/metrics", "")
		_, text, _ = strings.Cut(text, `kvatlas_router_trials_total{result="`+result+`"} `)
		_, _ = fmt.Sscan(text, &n)
		return n
	}
	waittest.Until(t, func() error {
		if ask1(); ended("well") == 0 || ended("failed") == 0 {
			return errors.New("not both engines were tried")
		}
		return nil
	})
	was := ended("failed")
	met = 0
	waittest.Until(t, func() error { // as seldom as trials are
		if ask1(); ended("failed") < was+2 {
			return errors.New("the engine that fails is not tried again")
		}
		return nil
	})
	if met > 0 {
		t.Errorf("%d requests go to the engine that fails", met)
	}
}
