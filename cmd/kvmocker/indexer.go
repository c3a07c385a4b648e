package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas"
	"github.com/kvatlas/kvatlas/bench/mocker"
	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/replica"
	"github.com/kvatlas/kvatlas/shard"
)

// withIndexer is an indexer beside the fleet, which routes its requests and shows both,
// for a demonstration: the goroutine of run owns it.
type withIndexer struct {
	On     bool
	Listen string
	Open   bool

	atlas   *kvatlas.Atlas
	replica *replica.Replica // of atlas
	server  *http.Server
	space   event.Space
	url     string
	tokens  []uint32 // of the first prompt
	hashes  []uint64
	told    bool // the requests to paste are printed
}

func (x *withIndexer) declare(set *conf.Set) {
	set.Group("Indexer")
	set.Bool(&x.On, "with-indexer", false, `Run an indexer in this process too, choose with it where requests go (in place of --routing),
		tell of it in each line of progress and how to ask it, and serve the console: a demonstration. Its workers register. Without
		--data-dir its messages are in a temporary directory that is removed at the end.`)
	set.Bool(&x.Open, "open", false, "Open the console of --with-indexer in a browser, if standard output is a terminal.")
	set.String(&x.Listen, "http-listen", "127.0.0.1:8090", "Address of the HTTP server, as host:port. It is the indexer's; if it is taken, a free port instead.")
}

// runWithIndexer is run, with an indexer beside the fleet.
func (c *config) runWithIndexer(ctx context.Context, log *slog.Logger) (err error) {
	// Whoever reads the lines may go away: then end as for ctrl-c.
	ctx, ignore := signal.NotifyContext(ctx, syscall.SIGPIPE)
	defer ignore()
	defer takeTerminal()()
	if c.settings.Source("data-dir") == "default" {
		if c.broker.DataDir, err = os.MkdirTemp("", "kvatlas-demo-"); err != nil {
			return fmt.Errorf("make a data directory: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(c.broker.DataDir)) }()
	}
	x := &c.indexer
	x.space = c.fleet.Space()
	if err := x.readExample(&c.fleet); err != nil {
		return err
	}
	cfg := kvatlas.Config{Replica: replica.Config{NATS: c.broker, Namespace: c.namespace, Log: log}}
	if x.atlas, err = kvatlas.Open(ctx, cfg); err != nil {
		return unlessEnded(ctx, err)
	}
	defer func() { err = errors.Join(err, x.atlas.Close(context.WithoutCancel(ctx))) }()
	x.replica = x.atlas.Replica()
	router, err := x.atlas.Router(x.space)
	if err != nil {
		return err
	}
	if err := x.serve(log); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.server.Close()) }()
	load := "generated requests"
	if c.fleet.Trace != "" {
		load = "the requests of " + c.fleet.Trace
	}
	fmt.Printf("kvindexer answers at %s. A mock fleet of %d workers × %d ranks serves %s.\n\nLook at it: %s\n\n",
		x.url, c.fleet.Workers, c.fleet.DPRanks, load, x.url+consolePath)
	if x.Open && isTerminal(os.Stdout) {
		if err := browse(ctx, x.url+consolePath); err != nil {
			log.Warn("no browser was opened", "error", err)
		}
	}
	c.register = true
	c.fleet.AtEnd, c.fleet.Tail, c.fleet.Through = mocker.EndWait, x.tail, newRouted(ctx, router)
	return c.publish(ctx, x.replica.Conn(), log)
}

// unlessEnded returns err, or nil where the end of ctx has cut a start short.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

const consolePath = "/console/"

// serve answers at the address, or at another port if it is taken.
func (x *withIndexer) serve(log *slog.Logger) error {
	index, err := x.replica.Handler()
	if err != nil {
		return err
	}
	page, err := x.atlas.Console(0)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", x.Listen)
	if host, _, splitErr := net.SplitHostPort(x.Listen); err != nil && splitErr == nil {
		log.Warn("the address is taken, another port instead", "address", x.Listen, "error", err)
		ln, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return fmt.Errorf("listen for the indexer (see --http-listen): %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", index)
	mux.Handle("GET /{$}", http.RedirectHandler(consolePath, http.StatusFound))
	mux.Handle(consolePath, http.StripPrefix(strings.TrimSuffix(consolePath, "/"), page))
	decisions := x.atlas.DecisionsHandler()
	mux.Handle("/v1/decisions", decisions)
	mux.Handle("/v1/decisions/", decisions)
	x.url = "http://" + ln.Addr().String()
	x.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	go func() { // ends with Close
		if err := x.server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the indexer answers no more", "error", err)
		}
	}()
	return nil
}

// tail says what the index has, and once something can be found, how to ask.
func (x *withIndexer) tail() string {
	sp := x.replica.Set().Lookup(x.space)
	if sp == nil {
		return "index: empty"
	}
	did, at := sp.Stats().Outcome, x.replica.Progress()
	text := fmt.Sprintf("index: %d blocks, lag %d", did.Stored-did.Removed, at.MessagesLeft)
	if x.told {
		return text
	}
	var found shard.Result
	sp.Find(x.hashes, &found)
	found.Each(func(shard.RankID, [event.NumTiers]uint32) { x.told = true })
	if x.told {
		text += x.requests()
	}
	return text
}

// requests are to paste: they find something.
func (x *withIndexer) requests() string {
	return fmt.Sprintf(`

Paste these into another terminal. Which workers have a prompt, by its tokens:
  curl -s %[1]s/v1/find_matches -d '{"model":"%[2]s","token_ids":[%[3]s]}'
the same by the hashes of its first blocks:
  curl -s %[1]s/v1/find_matches -d '{"model":"%[2]s","hashes":[%[4]s]}'
and all workers with the blocks that they hold, and the metrics:
  curl -s %[1]s/v1/workers
  curl -s %[1]s/metrics
`, x.url, x.space.Model, list(x.tokens), join(x.hashes))
}

// readExample reads the beginning of the first prompt: tokens of up to 16 blocks and
// hashes of 4.
func (x *withIndexer) readExample(fleet *mocker.Config) error {
	src, closer, err := fleet.Open()
	if err != nil {
		return err
	}
	defer closer() //nolint:errcheck // only read
	h := trace.NewHasher(src.IDTokens(), fleet.Engine.BlockSize)
	var r trace.Request
	for len(x.hashes) < 4 {
		if err := src.Next(&r); err != nil {
			return fmt.Errorf("no prompt of four blocks: %w", err)
		}
		x.hashes = h.Prompt(x.hashes[:0], &r)
	}
	x.tokens = h.Tokens(nil, &r, 0, min(len(x.hashes), 16)*fleet.Engine.BlockSize)
	x.hashes = x.hashes[:4]
	return nil
}

// list writes tokens as a shell would take them inside single quotes:
// consecutive ones by seq.
func list(tokens []uint32) string {
	for i, t := range tokens {
		if uint64(t) != uint64(tokens[0])+uint64(i) {
			return join(tokens)
		}
	}
	return fmt.Sprintf("'$(seq -s, %d %d)'", tokens[0], tokens[len(tokens)-1])
}

func join[T uint32 | uint64](list []T) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]")
}
