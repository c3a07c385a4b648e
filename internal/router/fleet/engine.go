package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/internal/modelfiles"
	"github.com/kvatlas/kvatlas/internal/program/reload"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/router/upstream"
	"github.com/kvatlas/kvatlas/registry"
)

// Engine is a worker's engine process. Its methods are safe for concurrent use.
type Engine struct {
	ID  uint64
	URL string // without a slash at the end; "" if the worker did not say
	// Base is URL, parsed. Nobody changes it.
	Base *url.URL
	// Prefill is set if it computes prompts for others, which then get to them in
	// the way of Transfer; SGLang's engines, and those of vLLM's MooncakeConnector, meet at
	// Bootstrap, host:port. Stated is the way that its registration names.
	Prefill   bool
	Transfer  registry.KVTransfer
	Stated    registry.KVTransfer
	Bootstrap string
	// Peer is where others fetch from it, host:port of rank 0; "" if they do not.
	Peer string

	who         secure.EngineID
	credentials *secure.Engines

	limit int
	model *Model
	first atomic.Uint32 // rank
	ranks atomic.Uint32
	names listed                            // under Fleet.mu
	files atomic.Pointer[[]modelfiles.File] // that its registration names
	life  atomic.Uint64                     // its registration's incarnation

	owner      atomic.Pointer[string]     // of its models, as it lists them; nil: not known, or not one
	connectors atomic.Pointer[connectors] // nil: not asked for

	software atomic.Pointer[Software] // nil: not known
	length   atomic.Int64             // max_model_len; 0: not known
	asked    atomic.Bool              // what it serves, with or without an answer
	asking   sync.Mutex               // held while it is asked that
	failures int                      // health checks in a row; under mu
	mu       sync.Mutex               // of the mark and its effect on the router
	failed   bool                     // does not answer health checks
}

// Show sets the header by which the engine knows the router, if it is to have one, in
// place of what a client may have put there.
func (e *Engine) Show(h http.Header) { e.credentials.Show(h, &e.who) }

// Model returns the model that it serves.
func (e *Engine) Model() *Model { return e.model }

// Gone reports whether its worker has left, or is reached in another way now.
func (e *Engine) Gone() bool { return e.model != nil && e.model.Engine(e.ID) != e }

// Process is one life of an engine: it is another one after a restart, in place, too.
type Process struct {
	engine *Engine
	life   uint64
}

// Process returns which one it is now.
func (e *Engine) Process() Process { return Process{e, e.life.Load()} }

// First returns its first data-parallel rank.
func (e *Engine) First() uint32 { return e.first.Load() }

// Ranks returns how many data-parallel ranks it has.
func (e *Engine) Ranks() uint32 { return e.ranks.Load() }

// Files returns the files of its tokenizer, as its registration names them; none if it does not.
func (e *Engine) Files() []modelfiles.File {
	if list := e.files.Load(); list != nil {
		return *list
	}
	return nil
}

// Healthy reports whether the engine answers health checks.
func (e *Engine) Healthy() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.failed
}

// checked notes the outcome of a health check. After several failures in a row the
// engine gets no requests until it is well. What becomes of requests is for its router
// to judge: a process may be well that serves none. It reports whether the mark changed.
func (e *Engine) checked(well bool) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failures++; well {
		e.failures = 0
	}
	was := e.failed
	e.failed = e.failures >= e.limit
	if e.failed == was {
		return false
	}
	if well {
		e.model.Router.Renew(e.ID)
	}
	_ = e.model.Router.SetDead(e.ID, e.failed) // it may be gone already
	return true
}

// NewClient returns what engines are asked with for their health and what else they say.
func NewClient(c *reload.Value[tls.Config]) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute}
	secure.Dialer(new(net.Dialer).DialContext).Into(transport, c)
	return ClientBy(transport)
}

// ClientBy returns the same, by connections of another's. It goes where it was told to and no
// further: a redirect is an answer.
func ClientBy(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// probes is how many engines are asked at once.
const probes = 16

// Probe asks every engine once for its health, at the path, and returns when all
// have answered or ctx ends. It reports how many changed their state.
func (f *Fleet) Probe(ctx context.Context, client *http.Client, path string, timeout time.Duration) (changed int) {
	return f.each(func(*Model) bool { return true }, func(e *Engine) int {
		err := e.probe(ctx, client, path, timeout)
		if err != nil && ctx.Err() != nil || !e.checked(err == nil) {
			return 0
		}
		if err != nil {
			f.log.Warn("an engine's health has changed", "worker", e.ID, "model", e.model.Space.Model, "healthy", false, "error", why(err))
		} else {
			f.log.Warn("an engine's health has changed", "worker", e.ID, "model", e.model.Space.Model, "healthy", true)
		}
		return 1
	})
}

// each calls do for every engine with an address of the models that are wanted,
// several at once, and returns the sum.
func (f *Fleet) each(want func(m *Model) bool, do func(e *Engine) int) int {
	var wg sync.WaitGroup
	var sum atomic.Int64
	room := make(chan struct{}, probes)
	for _, m := range f.Models() {
		if !want(m) {
			continue
		}
		for _, e := range m.Engines() {
			if e.URL == "" {
				continue
			}
			room <- struct{}{}
			wg.Go(func() {
				defer func() { <-room }()
				sum.Add(int64(do(e)))
			})
		}
	}
	wg.Wait()
	return int(sum.Load())
}

// why is what of it may be logged: no words of an engine's.
func why(err error) error {
	if status := statusError(0); errors.As(err, &status) {
		return err
	}
	return upstream.Wordless(err)
}

// statusError is why an engine that answers is not well.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("it answers with status %d", int(s)) }

// probe returns why the engine is not well.
func (e *Engine) probe(ctx context.Context, client *http.Client, path string, timeout time.Duration) error {
	status, _, err := e.ask(ctx, client, path, timeout, 64<<10)
	if err == nil && status >= 500 {
		return statusError(status)
	}
	return err
}

// fetch returns what a GET of the path answers, if that is well and not too long.
func (e *Engine) fetch(ctx context.Context, client *http.Client, path string, timeout time.Duration, most int64) ([]byte, bool) {
	status, data, err := e.ask(ctx, client, path, timeout, most+1)
	return data, err == nil && status == http.StatusOK && int64(len(data)) <= most
}

func (e *Engine) ask(ctx context.Context, client *http.Client, path string, timeout time.Duration, most int64) (status int, data []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL+path, nil)
	if err != nil {
		return 0, nil, err
	}
	e.Show(req.Header)
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	data, err = io.ReadAll(io.LimitReader(resp.Body, most)) // to its end, for the connection's next use
	return resp.StatusCode, data, errors.Join(err, resp.Body.Close())
}

// fetches reports whether the engine fetches prefixes from others. A prefill worker of vLLM does, as its MultiConnector has
// the connector that hands over and the offloading one side by side, and gives both all parameters (0.33.0); SGLang's are
// told nothing of the kind.
func (e *Engine) fetches() bool {
	return e.Peer != "" && (!e.Prefill || e.Transfer != registry.TransferSGLang)
}

// Peers reports whether an engine of the model fetches prefixes from others. It looks at all.
func (m *Model) Peers() bool {
	for _, e := range m.Engines() {
		if e.Peer != "" {
			return true
		}
	}
	return false
}
