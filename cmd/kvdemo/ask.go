package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/bench/mocker"
	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/internal/program/conf"
)

// metrics is what the lines show of the indexer.
type metrics struct {
	events, stored, removed, lag float64
}

// scrape reads the indexer's metrics.
func scrape(ctx context.Context, url string) (m metrics, err error) {
	text, err := call(ctx, http.MethodGet, url, "")
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue // a comment
		}
		family, _, _ := strings.Cut(series, "{")
		switch {
		case family == "kvatlas_ingest_events_total":
			m.events += v
		case family == "kvatlas_ingest_lag_messages":
			m.lag += v
		case series == `kvatlas_ingest_blocks_total{result="stored"}`:
			m.stored += v
		case series == `kvatlas_ingest_blocks_total{result="removed"}`:
			m.removed += v
		}
	}
	return m, nil
}

// tell prints requests to paste, once they find something.
func (d *demo) tell(ctx context.Context) bool {
	tokens, hashes, err := d.example()
	if err != nil {
		d.log.Warn("no example to show", "error", err)
		return true
	}
	body := fmt.Sprintf(`{"model":"mock","hashes":[%s]}`, join(hashes))
	answer, err := call(ctx, http.MethodPost, d.url+"/v1/find_matches", body)
	if err != nil || !strings.Contains(answer, `"worker_id"`) {
		return false // not yet there: with the next line
	}
	fmt.Printf(`
Paste these into another terminal. Which workers have a prompt, by its tokens:
  curl -s %[1]s/v1/find_matches -d '{"model":"mock","token_ids":[%[2]s]}'
the same by the hashes of its first blocks:
  curl -s %[1]s/v1/find_matches -d '%[3]s'
and all workers with the blocks that they hold, and the metrics:
  curl -s %[1]s/v1/workers
  curl -s %[1]s/metrics

`, d.url, list(tokens), body)
	return true
}

// example returns the beginning of the first prompt: tokens of up to 16 blocks
// and hashes of up to 4.
func (d *demo) example() (tokens []uint32, hashes []uint64, err error) {
	var cfg mocker.Config
	set := conf.New("kvmocker", "")
	cfg.Declare(set)
	if _, err := set.Run(nil, nil, os.Stderr); err != nil {
		return nil, nil, err
	}
	cfg.Trace = d.trace
	src, closer, err := cfg.Open()
	if err != nil {
		return nil, nil, err
	}
	defer closer() //nolint:errcheck // only read
	h := trace.NewHasher(src.IDTokens(), cfg.Engine.BlockSize)
	var r trace.Request
	for len(hashes) < 4 {
		if err := src.Next(&r); err != nil {
			return nil, nil, fmt.Errorf("no prompt of four blocks: %w", err)
		}
		hashes = h.Prompt(hashes[:0], &r)
	}
	tokens = h.Tokens(nil, &r, 0, min(len(hashes), 16)*cfg.Engine.BlockSize)
	return tokens, hashes[:4], nil
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
	var b strings.Builder
	for i, v := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatUint(uint64(v), 10))
	}
	return b.String()
}

// call makes a request of the indexer and returns the body of the answer.
func call(ctx context.Context, method, url, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewBufferString(body))
	if err != nil {
		return "", fmt.Errorf("ask the indexer: %w", err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask the indexer: %w", err)
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("the indexer answers %s: %s", res.Status, text)
	}
	return string(text), err
}
