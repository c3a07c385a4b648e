package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// begin runs a router and returns its URL when it is ready, what tells it to
// stop, and where its end is told.
func begin(t *testing.T, args ...string) (url string, stop func(), ended <-chan error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "address")
	c, err := read(t, append([]string{"--http-listen=127.0.0.1:0", "--address-file=" + file, "--nats=none", "--kv-events=false"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- run(ctx, c, slog.New(slog.DiscardHandler)) }()
	waittest.Until(t, func() error {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		url = "http://" + strings.TrimSpace(string(data))
		if status, text, _ := ask(http.MethodGet, url+"/readyz", ""); status != 200 {
			return fmt.Errorf("%d %s", status, text)
		}
		return nil
	})
	return url, cancel, done
}

// stream asks for a streamed answer of n tokens and reports when it has begun.
func stream(url string, n int, begun func()) (string, error) {
	resp, err := http.Post(url+"/v1/completions", "application/json", //nolint:noctx // ends with the router
		strings.NewReader(fmt.Sprintf(`{"model":"m","stream":true,"max_tokens":%d,"prompt":"a prompt of some length"}`, n)))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	first := make([]byte, 1)
	if _, err := io.ReadFull(resp.Body, first); err != nil {
		return "", err
	}
	begun()
	rest, err := io.ReadAll(resp.Body)
	return string(first) + string(rest), err
}

// short asks for a short answer; last says that the connection ends with it.
func short(url string) (status int, last bool, err error) {
	resp, err := http.Post(url+"/v1/completions", "application/json", //nolint:noctx // ends with the router
		strings.NewReader(`{"model":"m","max_tokens":2,"prompt":"a short prompt"}`))
	if err != nil {
		return 0, false, err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.Close, err
}

// Told to stop under load, the router answers what comes during the announced
// time, and brings every generation that runs to its end.
func TestStoppingUnderLoadCutsNothingOff(t *testing.T) {
	const delay = 2 * time.Second
	step := mockapi.Config{Step: func(*mock.Report) time.Duration { return 20 * time.Millisecond }}
	url, stop, ended := begin(t, "--drain-delay="+delay.String(), "--stop-timeout=5m", "--engines="+engine(t, step)+","+engine(t, step), "--model=m", "--block-size=4")

	var streams, clients sync.WaitGroup
	var running atomic.Int64
	for range 16 {
		streams.Go(func() { // longer than the drain delay
			text, err := stream(url, 200, func() { running.Add(1) })
			if err != nil || !strings.HasSuffix(text, "data: [DONE]\n\n") {
				t.Errorf("a stream was cut off: %v after %d bytes", err, len(text))
			}
		})
	}
	waittest.Until(t, func() error {
		if n := running.Load(); n < 16 {
			return fmt.Errorf("%d streams", n)
		}
		return nil
	})
	var told atomic.Bool                // readiness has failed
	var began atomic.Pointer[time.Time] // the end
	var after atomic.Int64
	for range 4 {
		clients.Go(func() {
			for {
				stopping := told.Load()
				status, last, err := short(url)
				switch {
				case status == 200 && stopping && !last:
					t.Error("the connection is to be used again")
					return
				case status == 200 && stopping:
					after.Add(1)
				case status != 200:
					if at := began.Load(); at == nil || time.Since(*at) < delay { // else the time may have been up before it came
						t.Errorf("asked in good time: %d %v", status, err)
					}
					return
				}
			}
		})
	}
	at := time.Now()
	began.Store(&at)
	stop()
	waittest.Until(t, func() error {
		if status, text, _ := ask("GET", url+"/readyz", ""); status == 200 {
			return fmt.Errorf("%d %s", status, text)
		}
		return nil
	})
	told.Store(true)
	clients.Wait()
	streams.Wait()
	if after.Load() == 0 {
		t.Log("the machine stood still for the whole delay: nobody asked after the signal")
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// What does not finish inside the grace period is cut off and told.
func TestTheGracePeriodEnds(t *testing.T) {
	step := mockapi.Config{Step: func(*mock.Report) time.Duration { return time.Second }}
	url, stop, ended := begin(t, "--stop-timeout=400ms", "--engines="+engine(t, step), "--model=m", "--block-size=4")
	var wait sync.WaitGroup
	begun := make(chan struct{})
	wait.Go(func() {
		if text, err := stream(url, 10000, func() { close(begun) }); err == nil && strings.HasSuffix(text, "data: [DONE]\n\n") {
			t.Errorf("it ended in order with %d bytes", len(text))
		}
	})
	<-begun
	stop()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "1 answers were cut off") && !strings.Contains(err.Error(), "--stop-timeout") {
		t.Error(err)
	}
	wait.Wait()
}
