package fleet

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/registry"
)

// Engine is a worker's engine process. Its methods are safe for concurrent use.
type Engine struct {
	ID  uint64
	URL string // without a slash at the end; "" if the worker did not say
	// Base is URL, parsed. Nobody changes it.
	Base *url.URL
	// Prefill is set if it computes prompts for others, which then get to them in
	// the way of Transfer; SGLang's engines meet at Bootstrap, host:port.
	Prefill   bool
	Transfer  registry.KVTransfer
	Bootstrap string

	limit int32
	model *Model
	ranks atomic.Uint32

	failures atomic.Int32 // in a row
	mu       sync.Mutex   // of the two marks and their effect on the router
	drained  bool         // by its operator
	failed   bool         // does not answer
}

// Ranks returns how many data-parallel ranks it has.
func (e *Engine) Ranks() uint32 { return e.ranks.Load() }

// Healthy reports whether the engine answers.
func (e *Engine) Healthy() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.failed
}

// Succeeded notes an answer.
func (e *Engine) Succeeded() {
	if e.failures.Load() != 0 && e.failures.Swap(0) >= e.limit {
		e.mark()
	}
}

// Failed notes that the engine could not be reached or did not answer. After
// several in a row it gets no requests until Probe finds it well.
func (e *Engine) Failed() {
	if e.failures.Add(1) == e.limit {
		e.mark()
	}
}

// mark brings the mark in line with the failures: calls may overtake each other.
func (e *Engine) mark() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failed = e.failures.Load() >= e.limit
	_ = e.model.Router.Drain(e.ID, e.drained || e.failed) // it may be gone already
}

// probes is how many engines are asked at once.
const probes = 16

// Probe asks every engine once for its health, at the path, and returns when all
// have answered or ctx ends. It reports how many changed their state.
func (f *Fleet) Probe(ctx context.Context, client *http.Client, path string, timeout time.Duration) (changed int) {
	var wg sync.WaitGroup
	var count atomic.Int64
	room := make(chan struct{}, probes)
	for _, m := range f.Models() {
		for _, e := range m.Engines() {
			if e.URL == "" {
				continue
			}
			room <- struct{}{}
			wg.Go(func() {
				defer func() { <-room }()
				was := e.Healthy()
				if probe(ctx, client, e.URL+path, timeout) {
					e.Succeeded()
				} else if ctx.Err() == nil {
					e.Failed()
				}
				if is := e.Healthy(); is != was {
					count.Add(1)
					f.log.Warn("an engine's health has changed", "worker", e.ID, "model", m.Space.Model, "healthy", is)
				}
			})
		}
	}
	wg.Wait()
	return int(count.Load())
}

func probe(ctx context.Context, client *http.Client, url string, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // for the connection's next use
	_ = resp.Body.Close()
	return resp.StatusCode < 500
}
