package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/internal/doctor"
	"github.com/kvatlas/kvatlas/registry"
)

// maxAnswer bounds what is read of an engine's answer.
const maxAnswer = 8 << 20

var (
	errNoTransfer = errors.New("the prefill worker answers without kv_transfer_params: was it started with a connector?")
	errNoTokens   = errors.New("it answers without tokens")
)

// engine is what a worker's engine is asked by.
type engine struct {
	g    *gathering
	w    *registry.Worker
	bare bool // it is shown no token
}

func (g *gathering) newEngine(w *registry.Worker) *engine { return &engine{g: g, w: w} }

// answer is what is read of a completion.
type answer struct {
	Usage struct {
		Details *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Transfer json.RawMessage `json:"kv_transfer_params"`
}

// cached is how many tokens the engine says it had; below 0: it does not say.
func (a *answer) cached() int {
	if a.Usage.Details == nil || a.Usage.Details.Cached == nil {
		return -1
	}
	return *a.Usage.Details.Cached
}

// ask sends a request and returns the answer's body and head.
func (e *engine) ask(ctx context.Context, method, path string, body any, rank string) ([]byte, http.Header, error) {
	var data io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, nil, err
		}
		data = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(e.w.Endpoints.HTTP, "/")+path, data)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	token := e.g.cfg.Token(e.w)
	if token != "" && !e.bare {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if rank != "" {
		req.Header.Set("X-data-parallel-rank", rank)
	}
	resp, err := e.g.client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the address is said elsewhere
		}
		return nil, nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, nil, err
	}
	if resp.StatusCode != http.StatusOK {
		text := string(b)
		if token != "" { // some say what they refuse
			text = strings.ReplaceAll(text, token, "[token]")
		}
		return nil, nil, fmt.Errorf("%s: status %d %s", path, resp.StatusCode, short(text))
	}
	return b, resp.Header, nil
}

// read asks for JSON.
func (e *engine) read(ctx context.Context, method, path string, body, into any) error {
	b, _, err := e.ask(ctx, method, path, body, "")
	if err == nil {
		if err = json.Unmarshal(b, into); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}
	return err
}

// describe asks what the engine says of itself.
func (e *engine) describe(ctx context.Context) *doctor.Engine {
	d := &doctor.Engine{}
	sent := time.Now()
	b, head, err := e.ask(ctx, http.MethodGet, "/v1/models", nil, "")
	var list struct {
		Data []struct {
			ID    string
			Owner string `json:"owned_by"`
		}
	}
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		d.Error = fmt.Sprintf("its engine does not answer at %s: %s", e.w.Endpoints.HTTP, short(err.Error()))
		return d
	}
	if at, err := http.ParseTime(head.Get("Date")); err == nil {
		d.Clock, d.ClockSaid = at.Sub(sent), true
	}
	owners := map[string]bool{}
	for _, m := range list.Data {
		d.Models, owners[m.Owner] = append(d.Models, m.ID), true
	}
	if len(owners) == 1 {
		d.Kind = list.Data[0].Owner
	}
	slices.Sort(d.Models)
	if text, _, err := e.ask(ctx, http.MethodGet, "/metrics", nil, ""); err == nil {
		d.BlockSize, d.Ranks = fromMetrics(string(text))
	}
	var info struct {
		Page  int `json:"page_size"`
		Ranks int `json:"dp_size"`
	}
	if d.BlockSize == 0 && e.read(ctx, http.MethodGet, "/server_info", nil, &info) == nil { // SGLang
		d.BlockSize, d.Ranks = max(0, info.Page), max(0, info.Ranks)
	}
	return d
}

// fromMetrics reads vLLM's size of a block, and how many ranks there are.
func fromMetrics(text string) (blockSize, ranks int) {
	size, engine := regexp.MustCompile(`[{,]block_size="(\d+)"`), regexp.MustCompile(`[{,]engine="(\d+)"`)
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "vllm:cache_config_info{"):
			if m := size.FindStringSubmatch(line); m != nil {
				if n, err := strconv.Atoi(m[1]); err == nil { // too large a number is none
					blockSize = n
				}
			}
		case strings.HasPrefix(line, "vllm:num_requests_running{"):
			if m := engine.FindStringSubmatch(line); m != nil {
				seen[m[1]] = true
			}
		}
	}
	return blockSize, len(seen)
}

// tokenize asks for the tokens of a request's prompt.
func (e *engine) tokenize(ctx context.Context, body any) ([]uint32, error) {
	var said struct{ Tokens []uint32 }
	err := e.read(ctx, http.MethodPost, "/tokenize", body, &said)
	if err == nil && len(said.Tokens) == 0 {
		err = errNoTokens
	}
	return said.Tokens, err
}

// prompt returns tokens of so many blocks and a little more, the same for each engine of
// a model: of words that stand for nothing.
func (e *engine) prompt(ctx context.Context, seed uint64, whole int) []uint32 {
	rnd := rand.New(rand.NewPCG(seed, 20))
	text := []byte("kvctl doctor")
	for len(text) < 6*whole+64 {
		text = append(text, ' ')
		for range 3 + rnd.IntN(5) {
			text = append(text, byte('a'+rnd.IntN(26)))
		}
	}
	tokens, err := e.tokenize(ctx, map[string]any{"model": e.w.Model, "prompt": string(text)})
	if err != nil || len(tokens) <= whole {
		tokens = tokens[:0]
		for range whole + 2 { // ids that every vocabulary has
			tokens = append(tokens, 1000+rnd.Uint32N(8000))
		}
	}
	return tokens[:min(len(tokens), whole+max(1, int(e.w.BlockSize)/2))]
}

// complete sends a prompt for one token of answer.
func (e *engine) complete(ctx context.Context, tokens []uint32, rank uint32, more map[string]any) (a answer, err error) {
	body := map[string]any{"model": e.w.Model, "prompt": tokens, "max_tokens": 1, "temperature": 0}
	for k, v := range more {
		body[k] = v
	}
	header := ""
	if e.g.ranks[e.w.Endpoints.HTTP] > 1 { // an engine of one rank, whichever of the model's, may refuse it (vLLM 0.33.0 behind another balancer)
		header = strconv.FormatUint(uint64(rank), 10)
	}
	b, _, err := e.ask(ctx, http.MethodPost, "/v1/completions", body, header)
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	return a, err
}

// bootstrap is where SGLang's decode workers meet the prefill worker.
func (e *engine) bootstrap() (host string, port int, err error) {
	if at := e.w.Endpoints.Bootstrap; at != "" {
		h, p, err := net.SplitHostPort(at)
		if err != nil {
			return "", 0, err
		}
		port, err = strconv.Atoi(p)
		return h, port, err
	}
	u, err := url.Parse(e.w.Endpoints.HTTP)
	if err != nil {
		return "", 0, err
	}
	return u.Hostname(), 8998, nil
}

// reachable connects to host:port, or to that of a URL; those on the host itself are not looked at.
func reachable(ctx context.Context, at string) error {
	if strings.Contains(at, "://") {
		u, err := url.Parse(at)
		if err != nil || u.Scheme == "ipc" {
			return err
		}
		port := u.Port()
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
		}
		at = net.JoinHostPort(u.Hostname(), port)
	}
	conn, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", at)
	if err != nil {
		return err
	}
	return conn.Close()
}
