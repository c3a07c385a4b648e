package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// A thousand streams at once through a real listener, to engines that drop, fail
// and break off, from clients that go away and that read slowly. Answers are
// whole and right, or visibly not whole; afterwards nothing is booked, no engine
// is at work and the goroutines are those from before.
func TestStress(t *testing.T) {
	streams := racetest.Few(1000)
	var arrived atomic.Int64
	gate := make(chan struct{}) // closed when most streams are under way
	open := sync.OnceFunc(func() { close(gate) })
	l := newLab(t, setup{
		engines: 8,
		fleet:   func(c *fleet.Config) { c.Unhealthy = 1 << 20 },
		proxy:   func(c *Config) { c.Retries, c.RetryShare = 2, 1 },
		engine: func(i int, c *mockapi.Config) {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			var mu sync.Mutex
			c.Engine = mock.Config{BlockSize: blockSize, MaxRunning: 256}
			c.Step = func(*mock.Report) time.Duration { <-gate; return time.Millisecond }
			c.Fault = func(*http.Request) (f mockapi.Fault) {
				mu.Lock()
				defer mu.Unlock()
				switch rng.IntN(20) {
				case 0:
					f.Drop = true
				case 1:
					f.Status = 503
				case 2:
					f.BreakAfter = 1 + rng.IntN(8)
				default:
					if arrived.Add(1) == int64(streams)*85/100 {
						open()
					}
				}
				return f
			}
		},
	})
	// One warm connection, so that what stays is there before.
	baseline := func() int {
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		return runtime.NumGoroutine()
	}
	before := baseline()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: streams, DialContext: (&net.Dialer{}).DialContext}}
	var whole, broken, refused, left atomic.Int64
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 2))
			prompt := fmt.Sprintf("system prompt number %d, which several share, and then question %d", i%20, i)
			output := 1 + rng.IntN(40)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.front.URL+"/v1/completions",
				strings.NewReader(fmt.Sprintf(`{"model":"org/model","stream":true,"max_tokens":%d,"prompt":%q}`, output, prompt)))
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close() //nolint:errcheck // only read
			if resp.StatusCode != http.StatusOK {
				refused.Add(1)
				return
			}
			if is, says := resp.Header.Get("X-Engine"), resp.Header.Get(headerWorker); is != says {
				t.Errorf("stream %d: engine %s answers, the router says %s", i, is, says)
			}
			body := io.Reader(resp.Body)
			switch i % 10 {
			case 0: // goes away
				_, _ = bufio.NewReaderSize(body, 16).ReadString('\n')
				left.Add(1)
				return
			case 1: // slow
				body = slowly{body, rng}
			}
			data, err := io.ReadAll(body)
			text, done := streamed(string(data))
			want := mockapi.Text(mockapi.Tokens(prompt), output)
			switch {
			case err == nil && done && text == want:
				whole.Add(1)
			case err != nil && (!done || text == want) && strings.HasPrefix(want, text): // after its last event, too
				broken.Add(1)
			default:
				t.Errorf("stream %d: %v, done %v:\n%q\nwant %q", i, err, done, text, want)
			}
		})
	}
	wg.Wait()
	client.CloseIdleConnections()
	l.idle()
	t.Logf("%d whole, %d broke off, %d refused, %d clients left; %s retries", whole.Load(), broken.Load(), refused.Load(), left.Load(),
		l.metric(`kvatlas_router_retries_total{reason="unreachable"}`))
	if n := whole.Load(); n < int64(streams)*6/10 || broken.Load() == 0 || left.Load() == 0 {
		t.Errorf("%d of %d streams are whole, %d broke off, %d left", n, streams, broken.Load(), left.Load())
	}
	if n, b := l.proxy.InFlight(), l.proxy.spool.Stats().Memory; n != 0 || b != 0 {
		t.Errorf("%d requests in flight, %d bytes of bodies", n, b)
	}
	if n := l.model().Router.Stats(); n.Expired != 0 || n.Dropped != 0 {
		t.Errorf("bookings ended by themselves: %+v", n)
	}
	l.proxy.Close()
	l.eventually(func() error {
		for _, e := range l.engines {
			e.http.CloseClientConnections()
		}
		if n := baseline(); n > before+5 {
			return fmt.Errorf("%d goroutines, %d before", n, before)
		}
		return nil
	})
}

// slowly reads a few bytes at a time and lets others run between.
type slowly struct {
	io.Reader
	rng *rand.Rand
}

func (s slowly) Read(b []byte) (int, error) {
	for range 20 {
		runtime.Gosched()
	}
	return s.Reader.Read(b[:min(len(b), 1+s.rng.IntN(40))])
}

// A worker that leaves in the middle of its answers takes their bookings along;
// the answers go on to their end.
func TestWorkerLeaves(t *testing.T) {
	steps := make(chan struct{})
	l := newLab(t, setup{engine: func(_ int, c *mockapi.Config) {
		c.Step = func(*mock.Report) time.Duration { <-steps; return 0 }
	}})
	done := make(chan string, 1)
	go func() {
		_, data, _ := l.post("/v1/completions", `{"model":"org/model","prompt":[1,2,3],"max_tokens":2,"stream":true}`)
		done <- data
	}()
	steps <- struct{}{}
	l.model().Router.RemoveWorker(0)
	if n := l.model().Router.Stats().Live; n != 0 {
		t.Errorf("%d bookings", n)
	}
	close(steps)
	if text, whole := streamed(<-done); !whole || text != mockapi.Text([]uint32{1, 2, 3}, 2) {
		t.Errorf("%q", text)
	}
	if status, data, _ := l.post("/v1/completions", `{"model":"org/model","prompt":[1,2,3]}`); status != 503 || !strings.Contains(data, "no_worker") {
		t.Errorf("%d %s", status, data)
	}
}

// The same with prompts that are computed in one pool and gone on with in another,
// while engines of both fail in every way.
func TestSplitStress(t *testing.T) {
	for _, way := range []string{mockapi.TransferVLLM, mockapi.TransferSGLang} {
		t.Run(way, func(t *testing.T) {
			l := pools(t, way, func(i int, c *mockapi.Config) {
				rng := rand.New(rand.NewPCG(uint64(i), 3))
				var mu sync.Mutex
				c.Step = func(*mock.Report) time.Duration { return 100 * time.Microsecond }
				c.Fault = func(*http.Request) (f mockapi.Fault) {
					mu.Lock()
					defer mu.Unlock()
					switch rng.IntN(12) {
					case 0:
						f.Drop = true
					case 1:
						f.Status = 503
					case 2:
						f.Status = 500
					case 3:
						f.BreakAfter = 1 + rng.IntN(3)
					}
					return f
				}
			})
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 300}}
			defer client.CloseIdleConnections()
			var whole, broken, refused atomic.Int64
			var all sync.WaitGroup
			for i := range 150 {
				all.Go(func() {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					prompt, output := fmt.Sprintf("the prompt that stream %d has", i), 1+i%20
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.front.URL+"/v1/completions",
						strings.NewReader(fmt.Sprintf(`{"model":"org/model","stream":true,"max_tokens":%d,"prompt":%q}`, output, prompt)))
					if err != nil {
						t.Error(err)
						return
					}
					if i%9 == 0 { // goes away at any moment
						time.AfterFunc(time.Duration(i)*10*time.Microsecond, cancel)
					}
					resp, err := client.Do(req)
					if err != nil {
						if ctx.Err() == nil {
							t.Error(err)
						}
						return
					}
					defer resp.Body.Close() //nolint:errcheck // only read
					if resp.StatusCode != http.StatusOK {
						refused.Add(1)
						return
					}
					data, err := io.ReadAll(resp.Body)
					text, done := streamed(string(data))
					switch want := mockapi.Text(mockapi.Tokens(prompt), output); {
					case err == nil && done && text == want:
						whole.Add(1)
					case err != nil && (!done || text == want) && strings.HasPrefix(want, text): // after its last event, too
						broken.Add(1)
					default:
						t.Errorf("stream %d: %v, done %v:\n%q\nwant %q", i, err, done, text, want)
					}
				})
			}
			all.Wait()
			l.idle()
			t.Logf("%d whole, %d broke off, %d refused; %s without prefill", whole.Load(), broken.Load(), refused.Load(), l.metric("kvatlas_router_decode_only_total"))
			if whole.Load() < 50 || l.metric("kvatlas_router_decode_only_total") == "0" {
				t.Errorf("%d whole; %s without prefill", whole.Load(), l.metric("kvatlas_router_decode_only_total"))
			}
			if n := l.proxy.InFlight(); n != 0 {
				t.Errorf("%d requests in flight", n)
			}
		})
	}
}
