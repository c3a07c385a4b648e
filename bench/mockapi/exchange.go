package mockapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// How the KV entries of a prompt get from the engine that computed it to the one
// that goes on with it.
const (
	// TransferVLLM: as vLLM's NIXL connector. The prefill engine answers with
	// kv_transfer_params, which the decode engine gets with its request.
	TransferVLLM = "vllm"
	// TransferSGLang: both get the request at the same time, with the prefill
	// engine's bootstrap address and a number to meet under.
	TransferSGLang = "sglang"
	// TransferMooncake: as vLLM's MooncakeConnector. Both get the request at the same time, with
	// the name of the transfer; the decode engine looks up the prefill engine by its id at its
	// bootstrap address.
	TransferMooncake = "mooncake"
)

// transfer is vLLM's kv_transfer_params, as its NIXL connector has them.
type transfer struct {
	RemotePrefill bool   `json:"do_remote_prefill"`
	RemoteDecode  bool   `json:"do_remote_decode"`
	Engine        string `json:"remote_engine_id"`
	Request       string `json:"remote_request_id"`
	Blocks        []int  `json:"remote_block_ids"`
	Host          string `json:"remote_host"`
	Port          int    `json:"remote_port"`
	// Cached is how many of the prompt's tokens the engine had that computed it, which the one that
	// goes on reports as its own.
	Cached *int `json:"remote_prefill_cached_tokens,omitempty"`
	// Tokens are the prompt's, where the request brings them.
	Tokens []uint32 `json:"prompt_token_ids,omitempty"`
	// ID and Bootstrap are the MooncakeConnector's.
	ID        string `json:"transfer_id,omitempty"`
	Bootstrap string `json:"remote_bootstrap_addr,omitempty"`
	// Source is the P2P tier's.
	Source *remoteSource `json:"remote_kv_source,omitempty"`
}

// bootstrap is what SGLang's engines meet by.
type bootstrap struct {
	Host string  `json:"bootstrap_host"`
	Port *int    `json:"bootstrap_port"`
	Room *uint64 `json:"bootstrap_room"`
}

// kvPath is where an engine gives away what it computed, by name.
const kvPath = "/mock/kv/"

// maxOffers bounds what an engine keeps for others; the oldest goes first.
const maxOffers = 4096

// exchange is the prompts that an engine has computed for others. Its zero value
// is empty.
type exchange struct {
	mu     sync.Mutex
	offers map[string]*offer
	order  []string
	serial int
}

type offer struct {
	ready  chan struct{} // closed when computed
	tokens int           // of the prompt; set before ready
	cached int           // of them, likewise
}

// at returns the offer of the name, made if absent. x.mu is held.
func (x *exchange) at(name string) *offer {
	o := x.offers[name]
	if o == nil {
		if x.offers == nil {
			x.offers = make(map[string]*offer)
		}
		o = &offer{ready: make(chan struct{})}
		x.offers[name] = o
		if x.order = append(x.order, name); len(x.order) > maxOffers {
			delete(x.offers, x.order[0])
			x.order = x.order[1:]
		}
	}
	return o
}

// give makes a prompt ready to be fetched.
func (x *exchange) give(name string, tokens, cached int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	o := x.at(name)
	select {
	case <-o.ready:
	default:
		o.tokens, o.cached = tokens, cached
		close(o.ready)
	}
}

// await waits for a prompt, which then is gone.
func (x *exchange) await(ctx context.Context, stop <-chan struct{}, name string, wait bool) *offer {
	x.mu.Lock()
	o := x.offers[name]
	if o == nil && wait {
		o = x.at(name)
	}
	x.mu.Unlock()
	if o == nil {
		return nil
	}
	select {
	case <-o.ready:
	case <-ctx.Done():
		return nil
	case <-stop:
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.offers[name] != o {
		return nil
	}
	delete(x.offers, name)
	return o
}

func (x *exchange) name() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.serial++
	return strconv.Itoa(x.serial)
}

// serveKV gives a prompt away.
func (s *Server) serveKV(w http.ResponseWriter, r *http.Request) {
	o := s.kv.await(r.Context(), s.stop, r.PathValue("name"), r.URL.Query().Has("wait"))
	if o == nil {
		http.NotFound(w, r)
		return
	}
	_, _ = fmt.Fprint(w, o.tokens, " ", o.cached) // the other engine may be gone
}

// offered returns what the answer of a prefill says about its prompt: for whom
// the engine is to keep it.
func (s *Server) offered(r *http.Request, prompt, cached int) *transfer {
	host, portText, err := net.SplitHostPort(r.Host)
	if err != nil {
		return nil
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil
	}
	t := &transfer{RemotePrefill: true, Engine: s.cfg.Model + "@" + r.Host, Request: s.kv.name(), Host: host, Port: port, Cached: &cached}
	for b := range (prompt + s.cfg.Engine.BlockSize - 1) / s.cfg.Engine.BlockSize {
		t.Blocks = append(t.Blocks, b)
	}
	return t
}

// receive fetches a prompt that another engine computes, if the request says so.
// It returns false where this engine has to compute it, and how much of it the other one had, below 0
// if it does not say.
func (s *Server) receive(ctx context.Context, q *request, prompt int) (received bool, cached int) {
	url := ""
	switch t := q.Transfer; {
	case s.cfg.Transfer == TransferVLLM && t != nil && t.RemotePrefill:
		if len(t.Blocks) != (prompt+s.cfg.Engine.BlockSize-1)/s.cfg.Engine.BlockSize || !strings.HasPrefix(t.Engine, s.cfg.Model+"@") {
			s.Lost.Add(1)
			return false, -1
		}
		url = "http://" + net.JoinHostPort(t.Host, strconv.Itoa(t.Port)) + kvPath + t.Request
	case s.cfg.Transfer == TransferMooncake && t != nil && t.RemotePrefill:
		if err := known(ctx, t.Bootstrap, t.Engine); err != nil || t.ID == "" {
			s.Lost.Add(1)
			return false, -1
		}
		url = t.Bootstrap + kvPath + transferName(t.ID) + "?wait"
	case s.cfg.Transfer == TransferSGLang && !s.cfg.Prefill && q.Room != nil && q.Port != nil:
		url = "http://" + net.JoinHostPort(q.Host, strconv.Itoa(*q.Port)) + kvPath + roomName(*q.Room) + "?wait"
	default:
		return false, -1
	}
	cached, err := fetch(ctx, url, prompt)
	if err != nil {
		s.Lost.Add(1)
		return false, -1
	}
	s.Received.Add(1)
	switch s.cfg.Transfer {
	case TransferMooncake:
		cached = prompt // nobody tells it what was cached there: to it, all that came was
	case TransferVLLM: // whose engines learn it of the router, and else say what they found, which is all that came
		if cached = prompt; q.Transfer.Cached != nil {
			cached = *q.Transfer.Cached
		}
	}
	return true, cached
}

// bootstrapServer answers as vLLM's MooncakeBootstrapServer who the engines of this worker are, by rank.
func (s *Server) bootstrapServer(w http.ResponseWriter, r *http.Request) {
	list := map[string]any{}
	for i := range s.ranks {
		list[strconv.Itoa(i)] = map[string]any{"engine_id": s.engineID(i), "worker_addr": map[string]any{"0": map[string]string{"0": "tcp://" + r.Host}}}
	}
	answer(w, http.StatusOK, list)
}

// engineID names the engine of a rank in this run.
func (s *Server) engineID(rank int) string { return fmt.Sprintf("%x-%d", s.id, rank) }

// known asks a bootstrap server whether the engine is one of its own.
func known(ctx context.Context, bootstrap, engine string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, bootstrap+"/query", nil)
	if err != nil {
		return err
	}
	req.Close = true
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	var list map[string]struct {
		Engine string `json:"engine_id"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&list); err != nil {
		return err
	}
	for _, e := range list {
		if e.Engine == engine {
			return nil
		}
	}
	return fmt.Errorf("no engine %q at %s", engine, bootstrap)
}

func transferName(id string) string { return "transfer-" + id }

func roomName(room uint64) string { return "room-" + strconv.FormatUint(room, 10) }

// fetchTimeout bounds the wait for another engine.
const fetchTimeout = time.Minute

func fetch(ctx context.Context, url string, prompt int) (cached int, err error) {
	data, err := askEngine(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	tokens := 0
	if n, err := fmt.Sscan(data, &tokens, &cached); n != 2 || tokens != prompt {
		return 0, errors.Join(fmt.Errorf("asked for %d tokens and got %q", prompt, data), err)
	}
	return cached, nil
}

// askEngine returns what another engine answers, which is short.
func askEngine(ctx context.Context, method, url string, body []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Close = true
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, 64))
	if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %d %q", url, resp.StatusCode, data)
	}
	return string(data), err
}

// transferJSON is the member of an answer.
func (t *transfer) json() json.RawMessage {
	b, err := json.Marshal(t)
	if err != nil {
		return json.RawMessage("null")
	}
	return b
}
