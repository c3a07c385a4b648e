package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// wrongIndex says that an index holds something else than the workers.
type wrongIndex struct {
	program string
	blocks  int64 // by which it differs
	first   string
}

func (w *wrongIndex) Error() string {
	return fmt.Sprintf("%s differs by %d blocks from what the workers hold: %s", w.program, w.blocks, w.first)
}

func (w *wrongIndex) add(blocks int64, format string, args ...any) {
	if w.blocks += blocks; w.first == "" {
		w.first = fmt.Sprintf(format, args...)
	}
}

// awaitRight waits until the index of the program holds what those workers do.
func (c *fleetCluster) awaitRight(ctx context.Context, p *fleetProcess, held []fleetHeld) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last error
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := c.judge(ctx, p, held)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("not within %s: %w", patience, last), c.tail(p.name))
		}
	}
}

// awaitIndexers waits until every kvindexer holds what those workers do that it reads.
func (c *fleetCluster) awaitIndexers(ctx context.Context, held []fleetHeld) error {
	for i, p := range c.indexers {
		own := slices.DeleteFunc(slices.Clone(held), func(h fleetHeld) bool { return stream.Partition(h.Worker, c.o.shares) != i })
		if err := c.awaitRight(ctx, p, own); err != nil {
			return err
		}
	}
	return nil
}

// judge compares the index with what the workers hold: of each its blocks, that its
// oldest and its newest chain are there, and are its own, and that the one before and
// the one after are not. The error is a *wrongIndex if it could be asked.
func (c *fleetCluster) judge(ctx context.Context, p *fleetProcess, held []fleetHeld) error {
	wrong := &wrongIndex{program: p.name}
	length := c.o.burst * c.o.blocks
	const atOnce = 64
	for some := range slices.Chunk(held, atOnce) {
		if err := judgeChains(ctx, p.url, some, length, wrong); err != nil {
			return err
		}
		if wrong.blocks > 0 {
			return wrong // the rest is for the next time
		}
	}
	if err := judgeBlocks(ctx, p.url, held, length, wrong); err != nil {
		return err
	}
	if wrong.blocks > 0 {
		return wrong
	}
	return nil
}

// judgeBlocks asks how many blocks each worker holds.
func judgeBlocks(ctx context.Context, url string, held []fleetHeld, length int, wrong *wrongIndex) error {
	body, err := fleetGet(ctx, url+"/v1/workers?model="+fleetSpace.Model)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // only read
	var answer struct {
		Spaces []struct {
			Workers []struct {
				ID     string `json:"worker_id"`
				Blocks int64  `json:"blocks"`
			} `json:"workers"`
		} `json:"spaces"`
	}
	if err := json.NewDecoder(body).Decode(&answer); err != nil {
		return fmt.Errorf("%s/v1/workers: %w", url, err)
	}
	blocks := make(map[string]int64)
	for _, sp := range answer.Spaces {
		for _, w := range sp.Workers {
			blocks[w.ID] += w.Blocks
		}
	}
	for _, h := range held {
		is, should := blocks[strconv.FormatUint(h.Worker, 10)], int64(h.Next-h.Oldest)*int64(length)
		if is != should {
			wrong.add(max(is-should, should-is), "worker %d holds %d blocks and not %d", h.Worker, is, should)
		}
	}
	return nil
}

// judgeChains asks for the chains at both ends of what each worker holds.
func judgeChains(ctx context.Context, url string, held []fleetHeld, length int, wrong *wrongIndex) error {
	type find struct {
		Model  string   `json:"model"`
		Hashes []uint64 `json:"hashes"`
	}
	type wanted struct {
		worker, chain uint64
		is            bool
	}
	var q struct {
		Requests []find `json:"requests"`
	}
	var want []wanted
	for _, h := range held {
		for _, n := range []uint64{h.Oldest - 1, h.Oldest, h.Next - 1, h.Next} {
			q.Requests = append(q.Requests, find{fleetSpace.Model, h.chain(nil, n, length)})
			want = append(want, wanted{h.Worker, n, n-h.Oldest < h.Next-h.Oldest})
		}
	}
	body, err := json.Marshal(q)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/find_matches/batch", bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // only read
	var got struct {
		Answers []struct {
			Spaces []struct {
				Workers []struct {
					ID      string `json:"worker_id"`
					Longest int    `json:"longest"`
				} `json:"workers"`
			} `json:"spaces"`
		} `json:"answers"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&got); err != nil || len(got.Answers) != len(want) {
		return errors.Join(fmt.Errorf("%s: %d answers to %d questions: %s", url, len(got.Answers), len(want), answer.Status), err)
	}
	for i, a := range got.Answers {
		found := 0
		for _, sp := range a.Spaces {
			for _, w := range sp.Workers {
				if w.Longest == length && w.ID == strconv.FormatUint(want[i].worker, 10) {
					found++
				} else {
					wrong.add(int64(length), "worker %s holds %d blocks of a chain of worker %d", w.ID, w.Longest, want[i].worker)
				}
			}
		}
		if found == 1 != want[i].is {
			wrong.add(int64(length), "worker %d's chain %d is found %d times", want[i].worker, want[i].chain, found)
		}
	}
	return nil
}
