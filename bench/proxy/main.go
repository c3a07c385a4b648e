// Command proxy measures what kvrouter adds to requests, beside smg's gateway and the
// engines alone, in one run:
//
//	go run ./bench/proxy -smg /path/to/venv/bin/smg      # or make bench-proxy SMG=…
//	go run ./bench/proxy -load 1000 -engines 256 -blocks 1000 -seconds 60 -half 600 -only events      # or make bench-hold
//	go run ./bench/proxy -index -dynamo /path/to/venv/bin/python
//
// wrk sends chats of 10 KB, a system prompt of 9.5 KB that all share and a question of
// its own, to engines that answer at once, with one answer or a stream of 20 chunks.
// kvrouter is there in two modes: without events, as smg's cache_aware is, and as it is
// by default, with engines that publish what they hold and tokenize each text; with
// -tokenizers DIR a third time, with its tokens made in the process by DIR's files. Who is
// measured takes turns, and medians are given. It prints a JSON object for each
// measurement, and a table. What is not installed is left out, with a message. With -pace N
// all get N requests a second instead of as many as each can answer.
//
// With -index it measures /query and /query_by_hash of kvindexer beside Dynamo's
// standalone indexer: eight workers publish the same chain of 512 blocks over ZMQ to
// both, and wrk asks on 16 connections.
//
// With -model-files DIR it measures how long chats of 1,000, 32,000 and 128,000 tokens take to their
// first byte, with mock engines that tokenize by DIR as slowly as the Hugging Face library does: alone,
// and behind a kvrouter that asks them for tokens, makes them itself, or sends them with the request.
//
// With -load it holds that many streams open at once through kvrouter, and with -half then half
// as many, and says how long they took and how its memory went.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	routers []string // name=path of what is measured; none: one that is built
	smg     string
	wrk     string
	seconds int
	rounds  int
	pace    int // requests a second; 0: as many as there can be
	engines int
	blocks  int
	chunks  int
	only    string
	load    int
	half    int
	pause   time.Duration
	serve   bool
	index   bool
	python  string
	model   string
	files   string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "proxy:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if o.wrk, err = exec.LookPath(o.wrk); err != nil && o.model == "" {
		fmt.Fprintln(stderr, "nothing is measured: wrk is not installed (apt-get install wrk)")
		return nil
	}
	dir, err := os.MkdirTemp("", "bench-proxy-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if len(o.routers) == 0 {
		name := "kvrouter"
		if o.index {
			name = "kvindexer"
		}
		path := filepath.Join(dir, name)
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./cmd/"+name) //nolint:gosec // one of two
		if build.Stderr = stderr; build.Run() != nil {
			return errors.New(name + " is not built: run this at the top of the repository, or give -program")
		}
		o.routers = []string{name + "=" + path}
	}
	s := &scene{options: o, dir: dir, stderr: stderr}
	defer func() { err = errors.Join(err, s.close()) }()
	if o.index {
		return s.index(ctx, stdout)
	}
	if o.load > 0 {
		return s.hold(ctx, stdout)
	}
	if o.model != "" {
		return s.tokens(ctx, stdout)
	}
	if err := s.open(ctx); err != nil {
		return err
	}
	return s.measure(ctx, stdout, chats())
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	f := flag.NewFlagSet("proxy", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Func("program", "`name=path` of a kvrouter (with -index, kvindexer), any number of times; without any, one is built from here", func(text string) error {
		if name, path, ok := strings.Cut(text, "="); !ok || name == "" || path == "" {
			return errors.New("give name=path")
		}
		o.routers = append(o.routers, text)
		return nil
	})
	f.StringVar(&o.smg, "smg", "smg", "smg's `program`, as pip installs it: pip install smg==1.13.0")
	f.StringVar(&o.wrk, "wrk", "wrk", "wrk's `program`")
	f.IntVar(&o.seconds, "seconds", 2, "time for each measurement")
	f.IntVar(&o.rounds, "rounds", 3, "rounds of all measurements")
	f.IntVar(&o.pace, "pace", 0, "`requests` a second for all who are measured, which compares their p99 at one rate; 0: as many as each can")
	f.IntVar(&o.engines, "engines", 4, "engines of each fleet")
	f.IntVar(&o.blocks, "blocks", cacheBlocks, "blocks that an engine holds: what is to be flat is so once they are full")
	f.IntVar(&o.chunks, "chunks", 20, "chunks of a streamed answer")
	f.StringVar(&o.only, "only", "", "measure only what has this in its name: whole-8, stream-1, …")
	f.IntVar(&o.load, "load", 0, "hold so many `streams` open at once instead, for -seconds")
	f.IntVar(&o.half, "half", 0, "after -load, hold half as many for so many `seconds`")
	f.DurationVar(&o.pause, "pause", 50*time.Millisecond, "between two chunks of -load")
	f.BoolVar(&o.index, "index", false, "measure kvindexer beside Dynamo's indexer instead")
	f.StringVar(&o.python, "dynamo", "python3", "`program` that has Dynamo's Python packages: pip install ai-dynamo-runtime==1.6.1")
	f.StringVar(&o.model, "model-files", "", "measure instead what the tokens of prompts cost, by the tokenizer.json in this `directory`")
	f.StringVar(&o.files, "tokenizers", "", "measure kvrouter also as it is by default with --tokenizers: tokens made in its process by the tokenizer.json in this `directory`")
	f.BoolVar(&o.serve, "serve", false, "only start everything and say where it is, until interrupted")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 || min(o.seconds, o.rounds, o.engines, o.blocks, o.chunks) < 1 || min(o.load, o.half, o.pace) < 0 || o.pace > 0 && (o.load > 0 || o.model != "") {
		return o, errors.New("-seconds, -rounds, -engines, -blocks and -chunks are above 0, -pace is not for -load or -model-files, and there are no other arguments")
	}
	return o, nil
}
