package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/porttest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
)

// Streams through a router that is stopped and started again while they go on.
// One that stops well ends no answer; one that has no time for that cuts them off
// visibly. No engine is left at work, no booking in the next router, and no
// goroutine.
func TestRestarts(t *testing.T) {
	var engines []*mockapi.Server
	var urls []string
	for range 4 {
		e, err := mockapi.New(mockapi.Config{Model: "m", Engine: mock.Config{BlockSize: 4},
			Step: func(*mock.Report) time.Duration { return 2 * time.Millisecond }})
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewServer(e)
		t.Cleanup(func() { e.Close(); s.CloseClientConnections(); s.Close() })
		engines, urls = append(engines, e), append(urls, s.URL)
	}
	address := porttest.Local(porttest.Free(t, 1)) // the next router can have it, too
	router := func(more ...string) (stop func()) {
		_, stop = start(t, append([]string{"--nats=none", "--kv-events=false", "--model=m", "--block-size=4", "--engines=" + strings.Join(urls, ","),
			"--http-listen=" + address}, more...)...)
		return stop
	}
	before := runtime.NumGoroutine()
	const streams, output = 100, 60
	var whole, broken, refused, begun atomic.Int64
	run := func(stop func()) {
		whole.Store(0)
		broken.Store(0)
		refused.Store(0)
		begun.Store(0)
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
		defer client.CloseIdleConnections()
		var all sync.WaitGroup
		for i := range streams {
			all.Go(func() {
				prompt := fmt.Sprintf("the prompt of stream %d", i)
				resp, err := client.Post("http://"+address+"/v1/completions", "application/json",
					strings.NewReader(fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":%d,"stream":true}`, prompt, output)))
				if err != nil {
					refused.Add(1)
					return
				}
				defer resp.Body.Close()                                //nolint:errcheck // only read
				if resp.StatusCode >= http.StatusInternalServerError { // it came when the router was ending
					refused.Add(1)
					return
				}
				begun.Add(1)
				text, done, err := readStream(resp.Body)
				switch want := mockapi.Text(mockapi.Tokens(prompt), output); {
				case resp.StatusCode != http.StatusOK:
					t.Errorf("%d %s", resp.StatusCode, text)
				case err == nil && done && text == want:
					whole.Add(1)
				case err != nil && (!done || text == want) && strings.HasPrefix(want, text): // after its last event, too
					broken.Add(1)
				default:
					t.Errorf("stream %d: %v, done %v: %q", i, err, done, text)
				}
			})
		}
		waittest.Until(t, func() error {
			if n := begun.Load(); n < streams/2 {
				return fmt.Errorf("%d streams have begun", n)
			}
			return nil
		})
		stop()
		all.Wait()
		waittest.Until(t, func() error {
			for i, e := range engines {
				if n := e.Live.Load(); n != 0 {
					return fmt.Errorf("engine %d still answers %d requests", i, n)
				}
			}
			return nil
		})
	}
	run(router())
	if broken.Load() != 0 || whole.Load() < streams/2 {
		t.Errorf("stopped well: %d whole, %d broke off, %d refused", whole.Load(), broken.Load(), refused.Load())
	}
	run(router("--stop-timeout=0s"))
	t.Logf("cut off: %d whole, %d broke off, %d refused", whole.Load(), broken.Load(), refused.Load())
	stop := router()
	_, text, _ := ask("GET", "http://"+address+"/v1/loads", "")
	var loads []struct {
		Requests int     `json:"active_requests"`
		Prefill  int     `json:"active_prefill_tokens"`
		Decode   float64 `json:"active_decode_blocks"`
	}
	if err := json.Unmarshal([]byte(text), &loads); err != nil || len(loads) != 4 {
		t.Errorf("%s: %v", text, err)
	}
	for _, l := range loads {
		if l.Requests != 0 || l.Prefill != 0 || l.Decode != 0 {
			t.Errorf("a new router begins with %+v", l)
		}
	}
	stop()
	http.DefaultClient.CloseIdleConnections()
	waittest.Until(t, func() error {
		if n := runtime.NumGoroutine(); n > before+4 {
			return fmt.Errorf("%d goroutines, %d before", n, before)
		}
		return nil
	})
}

// readStream returns the text of a streamed completion and whether it was whole.
func readStream(r io.Reader) (text string, done bool, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		payload, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if payload == "[DONE]" {
			done = true
			continue
		}
		var chunk struct{ Choices []struct{ Text string } }
		if json.Unmarshal([]byte(payload), &chunk) == nil && len(chunk.Choices) > 0 { // the last line may be cut off
			text += chunk.Choices[0].Text
		}
	}
	return text, done, lines.Err()
}

// With weight 0 no index is kept and nothing is subscribed to, and whoever has
// events to publish is not read.
func TestWeightZeroReadsNothing(t *testing.T) {
	t.Run("weight 1", func(t *testing.T) { testReads(t, "--overlap-weight=1", true) })
	t.Run("weight 0", func(t *testing.T) { testReads(t, "--overlap-weight=0", false) })
}

func testReads(t *testing.T, flag string, reads bool) {
	dir := t.TempDir()
	url, stop := start(t, "--data-dir="+dir, flag)
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	log := slog.New(slog.DiscardHandler)
	b, err := broker.Open(ctx, broker.Config{URL: broker.Embedded, DataDir: dir, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	pub, err := publish.Open(ctx, publish.Config{Conn: b.Conn(), Namespace: "default", Worker: 1, Log: log, Space: event.Space{Model: "m", BlockSize: 4}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(pub.Stored(ctx, 0, event.Device, publish.Parent{}, []uint64{1}, []uint64{2}), pub.Flush(ctx)); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	consumers := func() (n int) {
		for info := range js.ListStreams(ctx).Info() {
			if strings.HasPrefix(info.Config.Name, "kvatlas_") {
				n += info.State.Consumers
			}
		}
		return n
	}
	metrics := func() bool {
		_, text, _ := ask("GET", url+"/metrics", "")
		return strings.Contains(text, "\nkvatlas_ingest_")
	}
	if reads {
		waittest.Until(t, func() error {
			if n := consumers(); n == 0 || !metrics() {
				return fmt.Errorf("%d consumers, metrics %v", n, metrics())
			}
			return nil
		})
	} else if n := consumers(); n != 0 || metrics() { // it would have looked before it was ready
		t.Errorf("%d consumers, metrics of events: %v", n, metrics())
	}
	_ = pub.Close(ctx)
	_ = b.Close()
	stop()
}
