package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/blockhash"
)

//go:embed query.lua
var queries string

// What both indexers hold: so many workers have one chain.
const (
	indexWorkers = 8
	indexBlocks  = 512
	indexModel   = "bench"
)

// index measures the HTTP of kvindexer beside Dynamo's standalone indexer, which both
// get the same chain from the same sockets.
func (s *scene) index(ctx context.Context, stdout io.Writer) error {
	text := make([]byte, indexBlocks*blockBytes)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range text {
		text[i] = byte(rng.Uint32())
	}
	var at []string
	for range indexWorkers {
		e, err := newEvents(s.blocks, token)
		if err != nil {
			return err
		}
		s.publishers = append(s.publishers, e)
		at = append(at, e.publisher.Endpoint())
	}
	bodies, err := indexBodies(text)
	if err != nil {
		return err
	}
	if err := s.indexer(ctx, at); err != nil {
		return err
	}
	if err := s.dynamo(ctx, at); err != nil {
		return err
	}
	for i := range s.targets {
		err := s.started[i].ready(ctx, func() bool {
			for _, e := range s.publishers { // whoever subscribes late gets it, too
				e.mu.Lock()
				clear(e.held)
				e.mu.Unlock()
				e.holds(text)
			}
			return s.holdsAll(&s.targets[i], bodies)
		})
		if err != nil {
			return fmt.Errorf("%d workers with the chain: %w", indexWorkers, err)
		}
	}
	return s.measure(ctx, stdout, []shape{{path: "/query", connections: 16, body: bodies["/query"]}, {path: "/query_by_hash", connections: 16, body: bodies["/query_by_hash"]}})
}

// indexBodies returns the bodies of the routes.
func indexBodies(text []byte) (map[string][]byte, error) {
	tokens := make([]uint32, 0, len(text)/bytesPerToken)
	for at := 0; at < len(text); at += bytesPerToken {
		tokens = append(tokens, token(text[at:]))
	}
	local, err := blockhash.LocalHashes(nil, tokens, blockSize, blockhash.Options{Seed: blockhash.Seed("", "")})
	if err != nil {
		return nil, err
	}
	ids, err := json.Marshal(tokens)
	if err != nil {
		return nil, err
	}
	signed := make([]int64, len(local)) // as Dynamo's wants them
	for i, h := range local {
		signed[i] = int64(h)
	}
	hashes, err := json.Marshal(signed)
	return map[string][]byte{
		"/query":         fmt.Appendf(nil, `{"token_ids":%s,"model_name":%q}`, ids, indexModel),
		"/query_by_hash": fmt.Appendf(nil, `{"block_hashes":%s,"model_name":%q}`, hashes, indexModel),
	}, err
}

// holdsAll reports whether the indexer knows that every worker has all of the chain.
func (s *scene) holdsAll(t *target, bodies map[string][]byte) bool {
	for path, body := range bodies {
		resp, err := http.Post("http://"+t.address+path, "application/json", bytes.NewReader(body)) //nolint:noctx // a program of our own
		if err != nil {
			return false
		}
		answer, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		var found struct{ Scores map[string]map[string]int }
		if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(answer, &found) != nil || len(found.Scores) != indexWorkers {
			return false
		}
		for _, ranks := range found.Scores {
			if n := ranks["0"]; n != indexBlocks && n != indexBlocks*blockSize {
				return false
			}
		}
	}
	return true
}

// indexer starts kvindexers.
func (s *scene) indexer(ctx context.Context, at []string) error {
	for _, r := range s.routers {
		name, path, _ := strings.Cut(r, "=")
		var workers []byte
		for i, e := range at {
			workers = fmt.Appendf(workers, "- {worker_id: %d, model: %s, block_size: %d, transport: zmq, endpoints: {events: {0: %q}}}\n", i, indexModel, blockSize, e)
		}
		serves := func(address string) bool { return answers("http://" + address + "/livez") }
		if err := s.replica(ctx, name, path, serves, workers, "--http-max-requests-per-connection=1000000000"); err != nil {
			return err
		}
	}
	return nil
}

// dynamo starts Dynamo's, if it is installed.
func (s *scene) dynamo(ctx context.Context, at []string) error {
	if path, err := exec.LookPath(s.python); err != nil || exec.CommandContext(ctx, path, "-c", "import dynamo.indexer").Run() != nil {
		fmt.Fprintf(s.stderr, "Dynamo's indexer is left out: %q has none (pip install ai-dynamo-runtime==1.6.1 into a virtual environment, and give -dynamo its bin/python)\n", s.python)
		return nil
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := ln.Addr().String()
	if err := ln.Close(); err != nil { // it chooses no port itself
		return err
	}
	_, port, _ := net.SplitHostPort(address)
	workers := make([]string, len(at))
	for i, e := range at {
		workers[i] = strconv.Itoa(i) + "=" + e
	}
	p, err := s.start(s.python, "-m", "dynamo.indexer", "--block-size", strconv.Itoa(blockSize), "--port", port, "--model-name", indexModel, "--workers", strings.Join(workers, ","))
	if err != nil {
		return err
	}
	return p.ready(ctx, func() bool {
		if !answers("http://" + address + "/health") {
			return false
		}
		s.targets = append(s.targets, target{"dynamo", address, p.cmd.Process.Pid})
		return true
	})
}

// answers reports whether somebody answers there.
func answers(url string) bool {
	resp, err := http.Get(url) //nolint:noctx,gosec // a program of our own
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return true
}
