package mocker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/registry"
)

// HTTPConfig holds the settings of Serve, beside those of the fleet.
type HTTPConfig struct {
	On        bool
	Host      string
	Port      int    // of the first worker; 0 takes free ones
	Advertise string // host to register; empty: Host
	Role      string
	Transfer  string
	Loras     []string
	Tokens    int // generated unless told

	Kind, Release               string // of the engine
	Tokenizer, Template, Kwargs string // directory, file, JSON
	TokenizeSpeed               float64

	Events, Replay int      // ports of the first worker's rank 0, where it publishes as engines do; 0: none
	Wrong          []string // of mockapi.Wrongs

	Peers bool
	Link  time.Duration // to give a token
}

func (h *HTTPConfig) is(wrong string) bool { return slices.Contains(h.Wrong, wrong) }

// kind is which engine the workers are.
func (h *HTTPConfig) kind() string {
	if h.Kind == "" && h.Transfer == mockapi.TransferSGLang {
		return mockapi.KindSGLang
	}
	return cmp.Or(h.Kind, mockapi.KindVLLM)
}

// tokenizer is what makes the workers' tokens; nil where no files say it.
func (h *HTTPConfig) tokenizer() (*mockapi.Tokenizer, error) {
	if h.Tokenizer == "" {
		return nil, nil
	}
	template := []byte(nil)
	if h.Template != "" {
		var err error
		if template, err = os.ReadFile(h.Template); err != nil {
			return nil, fmt.Errorf("--engine-chat-template: %w", err)
		}
	}
	t, err := mockapi.LoadTokenizer(os.DirFS(h.Tokenizer), h.kind(), string(template), h.Kwargs)
	if err != nil {
		return nil, fmt.Errorf("--model-files %s: %w", h.Tokenizer, err)
	}
	return t, nil
}

// Register announces a worker and returns what takes it back.
type Register func(ctx context.Context, w registry.Worker) (withdraw func(ctx context.Context) error, err error)

// served is one worker of Serve.
type served struct {
	id       uint64
	url      string
	engine   *mockapi.Server
	http     *http.Server
	listener net.Listener
	pub      Publisher
	withdraw func(ctx context.Context) error
}

// Serve lets the fleet answer OpenAI's endpoints until ctx ends: each worker
// listens, publishes its events and is registered. ready, if set, is called with
// the workers' URLs. register may be nil.
func Serve(ctx context.Context, cfg *Config, broker Broker, register Register, log *slog.Logger, ready func(urls []string)) (err error) {
	if ip := net.ParseIP(cfg.HTTP.Host); cfg.HTTP.Advertise == "" && (cfg.HTTP.Host == "" || ip != nil && ip.IsUnspecified()) {
		return fmt.Errorf("--http-host %q is every address of this machine: name the one to register with --http-advertise", cfg.HTTP.Host)
	}
	if cfg.HTTP.Peers && cfg.DPRanks > 1 {
		return errors.New("--peers is for workers with one rank: leave out --dp-size")
	}
	tokenizer, err := cfg.HTTP.tokenizer()
	if err != nil {
		return err
	}
	workers := make([]*served, 0, cfg.Workers)
	failed := make(chan error, cfg.Workers)
	defer func() { err = errors.Join(err, stopServing(ctx, workers)) }()
	var urls []string
	for i := range cfg.Workers {
		w, err := cfg.serve(ctx, i, tokenizer, broker, log)
		if err != nil {
			return unlessEnded(ctx, err)
		}
		workers, urls = append(workers, w), append(urls, w.url)
		go func() { failed <- w.http.Serve(w.listener) }() // ends with stopServing
	}
	for _, w := range workers {
		if register != nil {
			if w.withdraw, err = register(ctx, cfg.describe(w)); err != nil {
				return unlessEnded(ctx, fmt.Errorf("register worker %d: %w", w.id, err))
			}
		}
		log.Info("engine listens", "worker", w.id, "url", w.url, "role", cfg.HTTP.Role)
	}
	if ready != nil {
		ready(urls)
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("serve HTTP: %w", err)
	}
}

// unlessEnded returns err, or nil where the end of ctx has cut a start short, which
// is an orderly end.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// serve makes worker i, which listens but does not answer yet.
func (c *Config) serve(ctx context.Context, i int, tokenizer *mockapi.Tokenizer, broker Broker, log *slog.Logger) (*served, error) {
	w := &served{id: uint64(c.FirstWorker + i)}
	port := c.HTTP.Port
	if port > 0 {
		port += i
	}
	var err error
	if w.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(c.HTTP.Host, strconv.Itoa(port))); err != nil {
		return nil, fmt.Errorf("listen for worker %d (see --http-host and --http-port): %w", w.id, err)
	}
	var blocks func(*mockapi.Blocks)
	if c.HTTP.Events > 0 {
		var r *raw
		if r, err = c.openRaw(i); err == nil {
			w.pub, blocks = r, r.told
		}
	} else {
		w.pub, err = broker.Open(ctx, c.Space(), w.id)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("publish for worker %d: %w", w.id, err), w.listener.Close())
	}
	mc := mockapi.Config{
		Model: c.Model, Loras: c.HTTP.Loras, Engine: c.Engine, Ranks: c.DPRanks, Default: c.HTTP.Tokens,
		Transfer: c.HTTP.Transfer, Prefill: c.HTTP.Role == string(registry.Prefill), Kind: c.HTTP.kind(), Release: c.HTTP.Release, Tokenizer: tokenizer,
		Blocks: blocks, Wrong: c.HTTP.Wrong,
		Sink: func(ev *event.Event) {
			// A publisher that is full holds the engine up; one that fails has said so
			// in the log, and its readers find a gap.
			_ = w.pub.Publish(ctx, *ev)
		},
	}
	if mc.Peer = c.HTTP.Peers; mc.Peer && c.Speed > 0 {
		mc.Link = func(tokens int) time.Duration {
			return time.Duration(float64(tokens) * float64(c.HTTP.Link) / c.Speed)
		}
	}
	if c.EngineHashes == HashesOwn {
		mc.Engine.HashSeed = uint64(c.Seed)<<32 + w.id + 1
	}
	if timing, speed := c.Timing, c.Speed; speed > 0 {
		mc.Step = func(r *mock.Report) time.Duration { return time.Duration(float64(timing.Step(r)) / speed) }
	}
	if rate := c.HTTP.TokenizeSpeed * c.Speed * 1e6; rate > 0 {
		mc.TokenizeTime = func(bytes int) time.Duration { return time.Duration(float64(bytes) / rate * float64(time.Second)) }
	}
	if w.engine, err = mockapi.New(mc); err != nil {
		return nil, errors.Join(fmt.Errorf("make the engine of worker %d: %w", w.id, err), w.listener.Close(), w.pub.Close(ctx))
	}
	host := c.HTTP.Advertise
	if host == "" {
		host = c.HTTP.Host
	}
	_, at, err := net.SplitHostPort(w.listener.Addr().String())
	if err != nil {
		return nil, errors.Join(err, w.listener.Close(), w.pub.Close(ctx))
	}
	w.url = "http://" + net.JoinHostPort(host, at)
	w.http = &http.Server{Handler: w.engine, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	return w, nil
}

// describe returns what is registered of a worker.
func (c *Config) describe(w *served) registry.Worker {
	r := c.Worker(w.id)
	r.Role, r.KVTransfer, r.Transport = registry.Role(c.HTTP.Role), registry.KVTransfer(c.HTTP.Transfer), registry.JetStream
	r.Endpoints.HTTP = w.url
	if (c.HTTP.Transfer == mockapi.TransferSGLang || c.HTTP.Transfer == mockapi.TransferMooncake) && c.HTTP.Role == string(registry.Prefill) {
		r.Endpoints.Bootstrap = w.url[len("http://"):] // the mock has one port for everything
	}
	if c.HTTP.Peers {
		r.Endpoints.Peer = w.url[len("http://"):]
	}
	if p, ok := w.pub.(interface{ Incarnation() uint64 }); ok {
		r.Incarnation = p.Incarnation()
	}
	return r
}

// Worker returns what is registered of a worker that answers no requests.
func (c *Config) Worker(id uint64) registry.Worker {
	r := registry.Worker{
		ID: id, Model: c.Model, BlockSize: uint32(c.Engine.BlockSize), Group: c.Group,
		HashScheme:  registry.Scheme(uint32(c.Engine.BlockSize)),
		TotalBlocks: uint64(c.Engine.Blocks), MaxBatchedTokens: uint64(c.Engine.MaxBatched),
		CacheGroups: c.Engine.CacheGroups(), Hybrid: len(c.Engine.Groups) > 0,
	}
	if c.EngineHashes == HashesShared {
		r.EngineScheme = "kvmocker"
	}
	for rank := range c.DPRanks {
		r.Ranks = append(r.Ranks, uint32(rank))
	}
	return r
}

// stopServing takes the workers out of the registry, ends their answers and
// flushes their events.
func stopServing(ctx context.Context, workers []*served) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWait)
	defer cancel()
	errs := make([]error, len(workers))
	var all sync.WaitGroup
	for i, w := range workers {
		all.Go(func() {
			if w.withdraw != nil {
				errs[i] = w.withdraw(ctx)
			}
			w.engine.Close()
			errs[i] = errors.Join(errs[i], w.http.Close(), w.pub.Close(ctx))
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
