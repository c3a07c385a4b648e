package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/shard"
)

// httpOptions are the flags of http.
type httpOptions struct {
	workers, blocks, connections int
	seconds                      float64
	only                         string
	serve, bodies                string
}

// httpLine is what is printed of each form.
type httpLine struct {
	Form        string  `json:"form"`
	Requests    float64 `json:"requests_per_s"`
	Floor       float64 `json:"floor_requests_per_s"`
	P50         float64 `json:"p50_us"`
	P99         float64 `json:"p99_us"`
	Share       float64 `json:"share_of_floor"`
	CPU         float64 `json:"cpu_us_per_request"` // of server and client together
	Allocations float64 `json:"allocations_per_request"`
	Workers     int     `json:"workers"`
	Blocks      int     `json:"blocks"`
	Connections int     `json:"connections"`
	RequestSize int     `json:"request_bytes"`
	AnswerSize  int     `json:"answer_bytes"`
}

const (
	httpModel     = "bench"
	httpBlockSize = 16
)

// runHTTP measures requests over loopback: server and clients share the
// processors, and so does the floor, an empty handler on a server with the
// same settings that is asked in the same way without a body.
func runHTTP(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o httpOptions
	f := newFlags("http", stderr)
	f.IntVar(&o.workers, "workers", 64, "workers that hold the whole prompt")
	f.IntVar(&o.blocks, "blocks", 64, "blocks of the prompt")
	f.Float64Var(&o.seconds, "seconds", 3, "time for each form, and as much for its floor")
	f.IntVar(&o.connections, "connections", 16, "keep-alive connections")
	f.StringVar(&o.only, "form", "", "only this `form`: json, binary, tokens, query_by_hash or query")
	f.StringVar(&o.serve, "serve", "127.0.0.1:0", "`address` of the server")
	f.StringVar(&o.bodies, "bodies", "", "write the bodies into `directory` and serve until interrupted, for another load generator (see bench/http.lua)")
	err := parseFlags(f, args, func() error {
		if min(o.workers, o.blocks, o.connections) < 1 || o.seconds <= 0 {
			return errors.New("--workers, --blocks, --connections and --seconds are above 0")
		}
		return nil
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	return measureHTTP(ctx, o, stdout)
}

func measureHTTP(ctx context.Context, o httpOptions, stdout io.Writer) (err error) {
	set := shard.New(shard.Config{Shards: 1})
	defer set.Close()
	tokens := make([]uint32, o.blocks*httpBlockSize)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range tokens {
		tokens[i] = rng.Uint32N(128_000)
	}
	local, err := blockhash.LocalHashes(nil, tokens, httpBlockSize, blockhash.Options{Seed: blockhash.Seed("", "")})
	if err != nil {
		return err
	}
	if err := fillHTTP(ctx, set, o.workers, local); err != nil {
		return err
	}
	server, floor, stop, err := serveHTTP(ctx, set, o.serve)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if o.bodies != "" {
		return serveBodies(ctx, o, httpForms(tokens, local), server, stdout)
	}
	for _, form := range httpForms(tokens, local) {
		if o.only != "" && form.name != o.only {
			continue
		}
		line, err := measureForm(o, form, server, floor)
		if err != nil {
			return fmt.Errorf("%s: %w", form.name, err)
		}
		if err := json.NewEncoder(stdout).Encode(line); err != nil {
			return err
		}
	}
	return nil
}

// fillHTTP lets every worker hold the prompt.
func fillHTTP(ctx context.Context, set *shard.Set, workers int, local []uint64) error {
	sp, err := set.Open(event.Space{Model: httpModel, BlockSize: httpBlockSize})
	if err != nil {
		return err
	}
	for w := range workers {
		b := event.Batch{Space: sp.Key(), Worker: uint64(w), Events: []event.Event{{Kind: event.Stored, Engine: local, Local: local}}}
		if _, err := sp.ApplyWait(ctx, &b); err != nil {
			return err
		}
	}
	return nil
}

// serveHTTP serves the index with the default settings and limits that do not
// bite, and an empty handler on a server of the same kind.
func serveHTTP(ctx context.Context, set *shard.Set, address string) (server, floor string, stop func() error, err error) {
	var cfg query.Config
	settings := conf.New("kvbench", "measures.")
	cfg.Declare(settings)
	args := []string{"--http-listen=" + address, "--http-max-body=64MiB", "--http-max-connections=100000",
		"--http-max-connections-per-ip=100000", "--http-max-inflight=100000", "--http-max-requests-per-connection=1000000000"}
	if _, err := settings.Run(args, nil, io.Discard); err != nil {
		return "", "", nil, err
	}
	s, err := query.New(cfg, query.Deps{Index: query.Shards{Set: set}, Log: slog.New(slog.DiscardHandler), Metrics: obs.NewMetrics()})
	if err != nil {
		return "", "", nil, err
	}
	ln, err := s.Listen(ctx)
	if err != nil {
		return "", "", nil, err
	}
	empty, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", nil, errors.Join(err, ln.Close())
	}
	none := &fasthttp.Server{Handler: func(*fasthttp.RequestCtx) {}, ReadTimeout: cfg.ReadTimeout, WriteTimeout: cfg.WriteTimeout,
		IdleTimeout: cfg.IdleTimeout, ReadBufferSize: int(cfg.MaxHeader), NoDefaultServerHeader: true}
	done := make(chan error, 2)
	go func() { done <- s.Serve(ln) }()
	go func() { done <- none.Serve(empty) }()
	stop = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return errors.Join(s.Shutdown(ctx), none.ShutdownWithContext(ctx), <-done, <-done)
	}
	return ln.Addr().String(), empty.Addr().String(), stop, nil
}

// httpForm is one way to ask.
type httpForm struct {
	name    string
	request []byte
}

func httpForms(tokens []uint32, local []uint64) []httpForm {
	post := func(path, kind string, body []byte) []byte {
		return append(fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", path, kind, len(body)), body...)
	}
	hashes, ids := []byte("["), []byte("[")
	for i, h := range local {
		if i > 0 {
			hashes = append(hashes, ',')
		}
		hashes = strconv.AppendUint(hashes, h, 10)
	}
	for i, t := range tokens {
		if i > 0 {
			ids = append(ids, ',')
		}
		ids = strconv.AppendUint(ids, uint64(t), 10)
	}
	var array []byte
	for _, h := range local {
		array = binary.LittleEndian.AppendUint64(array, h)
	}
	const find, js = "/v1/find_matches", "application/json"
	return []httpForm{
		{"json", post(find, js, fmt.Appendf(nil, `{"model":%q,"hashes":%s]}`, httpModel, hashes))},
		{"binary", post(find+"?model="+httpModel, "application/octet-stream", array)},
		{"tokens", post(find, js, fmt.Appendf(nil, `{"model":%q,"token_ids":%s]}`, httpModel, ids))},
		{"query_by_hash", post("/query_by_hash", js, fmt.Appendf(nil, `{"block_hashes":%s],"model_name":%q}`, hashes, httpModel))},
		{"query", post("/query", js, fmt.Appendf(nil, `{"token_ids":%s],"model_name":%q}`, ids, httpModel))},
	}
}

// serveBodies writes the body of each form and waits until ctx ends.
func serveBodies(ctx context.Context, o httpOptions, forms []httpForm, server string, stdout io.Writer) error {
	for _, form := range forms {
		_, body, _ := bytes.Cut(form.request, []byte("\r\n\r\n"))
		if err := os.WriteFile(filepath.Join(o.bodies, form.name), body, 0o600); err != nil {
			return err
		}
	}
	fmt.Fprintln(stdout, server)
	<-ctx.Done()
	return nil
}

// measureForm measures half of the floor, the form, and the other half.
func measureForm(o httpOptions, form httpForm, server, floor string) (line httpLine, err error) {
	get := []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	half := time.Duration(o.seconds * float64(time.Second) / 2)
	var before, after runtime.MemStats
	load := func(address string, request []byte, d time.Duration) (l loaded) {
		if err == nil {
			l, err = loadHTTP(address, request, o.connections, d)
		}
		return l
	}
	load(server, form.request, half/4) // warm
	first := load(floor, get, half)
	runtime.ReadMemStats(&before)
	cpu := processCPU()
	main := load(server, form.request, 2*half)
	cpu = processCPU() - cpu
	runtime.ReadMemStats(&after)
	second := load(floor, get, half)
	if err != nil {
		return line, err
	}
	line = httpLine{
		Form: form.name, Requests: main.rate(), Floor: (first.rate() + second.rate()) / 2,
		P50: main.times.us(0.5), P99: main.times.us(0.99), Workers: o.workers, Blocks: o.blocks, Connections: o.connections,
		RequestSize: len(form.request), AnswerSize: main.answer,
		CPU:         cpu.Seconds() * 1e6 / float64(main.times.n),
		Allocations: float64(after.Mallocs-before.Mallocs) / float64(main.times.n),
	}
	line.Share = line.Requests / line.Floor
	return line, nil
}

// loaded is what clients saw.
type loaded struct {
	times  *latencies
	took   time.Duration
	answer int // bytes of an answer, its header included
}

func (l *loaded) rate() float64 { return float64(l.times.n) / l.took.Seconds() }

// loadHTTP sends the request again and again on all connections, one at a time
// on each.
func loadHTTP(address string, request []byte, connections int, d time.Duration) (loaded, error) {
	var clients sync.WaitGroup
	all, errs := make([]*latencies, connections), make([]error, connections)
	sizes := make([]int, connections)
	begin := make(chan struct{})
	var end time.Time
	for i := range connections {
		all[i] = newLatencies()
		clients.Go(func() {
			<-begin
			sizes[i], errs[i] = askHTTP(address, request, end, all[i])
		})
	}
	start := time.Now()
	end = start.Add(d)
	close(begin)
	clients.Wait()
	l := loaded{times: newLatencies(), took: time.Since(start), answer: sizes[0]}
	for _, one := range all {
		l.times.join(one)
	}
	return l, errors.Join(errs...)
}

// askHTTP is one connection's client. It looks at no more of an answer than its
// status and where it ends.
func askHTTP(address string, request []byte, end time.Time, times *latencies) (size int, err error) {
	c, err := new(net.Dialer).DialContext(context.Background(), "tcp", address)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	buf := make([]byte, 64<<10)
	for now := time.Now(); times.n == 0 || now.Before(end); {
		if _, err := c.Write(request); err != nil {
			return 0, err
		}
		if size, buf, err = readAnswer(c, buf); err != nil {
			return 0, err
		}
		next := time.Now()
		times.add(int64(next.Sub(now)))
		now = next
	}
	return size, nil
}

// readAnswer reads one answer and returns its size. buf grows to hold it.
func readAnswer(c net.Conn, buf []byte) (size int, _ []byte, err error) {
	const ok, length = "HTTP/1.1 200 ", "Content-Length: "
	have, want := 0, -1
	for want < 0 || have < want {
		if have == len(buf) {
			buf = append(buf, make([]byte, len(buf))...)
		}
		n, err := c.Read(buf[have:])
		if err != nil {
			return 0, buf, err
		}
		have += n
		if want >= 0 {
			continue
		}
		header, _, whole := bytes.Cut(buf[:have], []byte("\r\n\r\n"))
		if !whole {
			continue
		}
		if !bytes.HasPrefix(header, []byte(ok)) {
			return 0, buf, fmt.Errorf("answered with %.300s", buf[:have])
		}
		_, rest, _ := bytes.Cut(header, []byte(length))
		digits, _, _ := bytes.Cut(rest, []byte("\r"))
		body, err := strconv.Atoi(string(digits))
		if err != nil {
			return 0, buf, fmt.Errorf("an answer without length: %.300s", header)
		}
		want = len(header) + 4 + body
	}
	return have, buf, nil
}
