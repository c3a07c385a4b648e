package main

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// Clients that go on asking while the indexer is told to stop lose nothing that
// they ask in the announced time: readiness has failed by then, and every answer
// closes its connection.
func TestStoppingUnderLoadFailsNoRequest(t *testing.T) {
	const delay = 3 * time.Second
	dir := t.TempDir()
	p := start(t, "--data-dir", dir, "--drain-delay", delay.String())
	p.ready()
	f := newFleet(t, join(t, dir))
	f.publish(100)
	f.compare(p)

	var told atomic.Pointer[time.Time] // when it was told to stop
	var before, after atomic.Int64     // requests that were answered
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for {
				stopping := told.Load()
				status, data, err := p.ask("POST", "/v1/find_matches", `{"model":"org/model","hashes":[1,2,3]}`)
				switch {
				case err == nil && status == 200:
				default:
					if stopping == nil || time.Since(*stopping) < delay { // else the time may have been up before it came
						t.Errorf("asked in good time: %d %s %v", status, data, err)
					}
					return
				}
				if stopping == nil {
					before.Add(1)
				} else {
					after.Add(1)
				}
			}
		})
	}
	waittest.Until(t, func() error {
		if n := before.Load(); n < 100 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	now := time.Now()
	told.Store(&now)
	p.signal(syscall.SIGTERM)
	p.waitLog("draining", "delay")
	status, data, err := p.ask("GET", "/readyz?verbose", "")
	if (err != nil || status != 503 || !strings.Contains(data, "shutting down")) && time.Since(now) < delay {
		t.Errorf("%v %d %s", err, status, data)
	}
	clients.Wait()
	if after.Load() == 0 {
		t.Log("the machine stood still for the whole delay: nobody asked after the signal")
	}
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
