package probe

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/internal/doctor"
	"github.com/kvatlas/kvatlas/registry"
)

// Config is what Gather needs. All of it does.
type Config struct {
	// Read returns who is registered; it is called before and after the prompts.
	Read      func(ctx context.Context) ([]registry.Entry, error)
	Conn      *nats.Conn
	Namespace string
	Seed      uint64        // of the prompts: another one for each call
	Tokens    int           // of a prompt at least, in blocks of which there are four at least
	Answer    time.Duration // how long an engine may take for one answer
	Listen    time.Duration // how long a prompt's events are waited for after it
	AtOnce    int           // workers that are asked at the same time
	// Token returns what an engine is shown as a bearer token; "" for nothing.
	Token func(w *registry.Worker) string
}

// announced is how long a publisher may take to write what it has seen into the registry.
const announced = 1500 * time.Millisecond

// gathering is one call of Gather.
type gathering struct {
	cfg    Config
	client *http.Client
	files  files
}

// Gather returns the facts of all workers that the registry has, and have not left for good.
func Gather(ctx context.Context, cfg Config) ([]doctor.Facts, error) {
	entries, err := cfg.Read(ctx)
	if err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e registry.Entry) bool { return e.State == registry.Gone })
	transport := http.Transport{MaxIdleConnsPerHost: 1, Proxy: nil}
	defer transport.CloseIdleConnections()
	g := &gathering{cfg: cfg, client: &http.Client{Transport: &transport, Timeout: cfg.Answer,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	g.files.open = func(ctx context.Context, w *registry.Worker) (model, error) { return g.load(ctx, w) }

	facts := make([]doctor.Facts, len(entries))
	g.each(len(entries), func(i int) { facts[i] = g.worker(ctx, &entries[i]) })
	shareEngines(facts)
	g.pairs(ctx, facts)
	if slices.ContainsFunc(facts, unexplained) {
		t := time.NewTimer(announced) // until what was seen of the prompts is registered
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	if entries, err = cfg.Read(ctx); err != nil {
		return nil, err
	}
	for i := range facts {
		f := &facts[i]
		for j := range entries {
			if entries[j].Key == f.Worker.Key() {
				f.Worker.Seen = entries[j].Seen
			}
		}
	}
	join(facts)
	return facts, nil
}

// unexplained reports whether blocks of a worker arrived that its registration is yet to
// explain.
func unexplained(f doctor.Facts) bool {
	return slices.ContainsFunc(f.Ranks, func(r doctor.Rank) bool { return r.Blocks > 0 && r.Heard < r.Blocks })
}

// each calls do for 0 … n-1, some at a time.
func (g *gathering) each(n int, do func(i int)) {
	var all sync.WaitGroup
	room := make(chan struct{}, max(1, g.cfg.AtOnce))
	for i := range n {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			do(i)
		})
	}
	all.Wait()
}

// join gives each worker the pool of its model.
func join(facts []doctor.Facts) {
	type key struct{ model, group string }
	pools := map[key]*doctor.Pool{}
	for i := range facts {
		w := &facts[i].Worker
		k := key{w.Model, w.Group}
		if pools[k] == nil {
			pools[k] = doctor.NewPool()
		}
		if facts[i].Absent == "" {
			pools[k].Add(w, facts[i].Ranks)
		}
		facts[i].Pool = pools[k]
	}
}

// shareEngines counts the ranks that are registered of each engine: each may be a worker
// of its own.
func shareEngines(facts []doctor.Facts) {
	ranks := map[string]int{}
	for i := range facts {
		ranks[facts[i].Worker.Endpoints.HTTP] += max(1, len(facts[i].Worker.Ranks))
	}
	for i := range facts {
		if e := facts[i].Engine; e != nil {
			e.Registered = ranks[facts[i].Worker.Endpoints.HTTP]
		}
	}
}

// worker looks at one worker alone.
func (g *gathering) worker(ctx context.Context, e *registry.Entry) doctor.Facts {
	f := doctor.Facts{Worker: e.Worker, Mismatch: e.Mismatch, Conflict: e.Conflict}
	if !e.Present() {
		f.Absent = e.State.String()
		return f
	}
	if e.Endpoints.HTTP == "" {
		return f
	}
	en := g.newEngine(&f.Worker)
	f.Engine = en.describe(ctx)
	if f.Engine.Error != "" {
		f.Ranks = nil
		return f
	}
	f.Engine.Tokens, f.Engine.TokensBy = g.compare(ctx, en)
	if f.Worker.Role == registry.Prefill && f.Worker.KVTransfer == registry.TransferSGLang {
		return f // it takes none without a decode worker
	}
	f.Ranks = g.prompts(ctx, en)
	return f
}

// prompts sends each rank a prompt, and once more, and listens.
func (g *gathering) prompts(ctx context.Context, en *engine) []doctor.Rank {
	ears := g.listen(ctx, en.w)
	defer ears.close()
	ranks := make([]doctor.Rank, len(en.w.Ranks))
	g.each(len(ranks), func(i int) { ranks[i] = g.rank(ctx, en, ears, i) })
	for i := range ranks {
		ears.tell(&ranks[i])
	}
	return ranks
}

func (g *gathering) rank(ctx context.Context, en *engine, ears *ears, i int) doctor.Rank {
	r := doctor.Rank{DPRank: en.w.Ranks[i], Cached: -1, OtherRank: -1}
	size := int(en.w.BlockSize)
	tokens := en.prompt(ctx, g.cfg.Seed+uint64(i), g.length(size))
	local, err := blockhash.LocalHashes(nil, tokens, size, blockhash.Options{Seed: blockhash.Seed(en.w.Lora, "")})
	if err != nil {
		r.Error = err.Error()
		return r
	}
	ears.expect(local)
	if _, err = en.complete(ctx, tokens, r.DPRank, nil); err != nil {
		r.Error = "a prompt as tokens is refused: " + err.Error()
		return r
	}
	answered := time.Now()
	r.Blocks = len(local)
	last, first := ears.wait(ctx, r.DPRank, local, g.cfg.Listen)
	if r.Heard, r.OtherRank = ears.heard(r.DPRank, local); r.Heard > 0 {
		r.Late = max(0, last.Sub(answered))
	}
	if i == 0 { // of which the prompt is that of all others' first one
		r.First = first
	}
	a, err := en.complete(ctx, tokens, r.DPRank, nil)
	if err != nil {
		r.Error = "the prompt is refused when it comes once more: " + err.Error()
		return r
	}
	r.Cached = a.cached()
	return r
}

// length is that of a prompt's complete blocks.
func (g *gathering) length(size int) int { return size * max(4, (g.cfg.Tokens+size-1)/size) }

// pairs tries prefill workers with decode workers.
func (g *gathering) pairs(ctx context.Context, facts []doctor.Facts) {
	type pool struct{ prefill, decode []*doctor.Facts }
	pools := map[[2]string]*pool{}
	for i := range facts {
		f := &facts[i]
		k := [2]string{f.Worker.Model, f.Worker.Group}
		if pools[k] == nil {
			pools[k] = &pool{}
		}
		switch p := pools[k]; {
		case f.Absent != "" || f.Engine == nil || f.Engine.Error != "":
		case f.Worker.Role == registry.Prefill:
			p.prefill = append(p.prefill, f)
		case f.Worker.Role == registry.Decode:
			p.decode = append(p.decode, f)
		}
	}
	for _, p := range pools {
		if len(p.prefill) == 0 || len(p.decode) == 0 {
			continue
		}
		g.each(max(len(p.prefill), len(p.decode)), func(i int) {
			first, then := p.prefill[i%len(p.prefill)], p.decode[i%len(p.decode)]
			pair := g.pair(ctx, &first.Worker, &then.Worker, uint64(1000+i))
			if pair == nil {
				return
			}
			other := *pair
			pair.Other, other.Other = called(&first.Worker), called(&then.Worker)
			if i < len(p.decode) {
				then.Pair = pair
			}
			if i < len(p.prefill) {
				first.Pair = &other
			}
		})
	}
}

func called(w *registry.Worker) string {
	if w.Name != "" {
		return w.Name
	}
	return fmt.Sprint(w.ID)
}

// pair has one worker compute a prompt for the other; nil where they are not of one kind.
func (g *gathering) pair(ctx context.Context, first, then *registry.Worker, n uint64) *doctor.Pair {
	if first.KVTransfer != then.KVTransfer && then.KVTransfer != "" {
		return nil // a finding of its own
	}
	a, b := g.newEngine(first), g.newEngine(then)
	size := int(first.BlockSize)
	tokens := a.prompt(ctx, g.cfg.Seed+n, g.length(size))
	p := &doctor.Pair{Tokens: len(tokens) / size * size, Cached: -1}
	var err error
	var said answer
	switch first.KVTransfer {
	case registry.TransferVLLM:
		said, err = g.relay(ctx, a, b, tokens)
	case registry.TransferSGLang:
		p.Tokens = 0 // decode engines do not say what was computed elsewhere
		said, err = g.meet(ctx, a, b, tokens, n)
	case registry.TransferMooncake:
		said, err = g.pull(ctx, a, b, tokens, n)
	default:
		return nil
	}
	if err != nil {
		p.Error = err.Error()
		return p
	}
	p.Cached = said.cached()
	return p
}

// relay is vLLM's NIXL connector: the prompt is computed, and once more, so that what
// the decode worker says of it tells whether it came.
func (g *gathering) relay(ctx context.Context, a, b *engine, tokens []uint32) (answer, error) {
	if _, err := a.complete(ctx, tokens, a.w.Ranks[0], nil); err != nil {
		return answer{}, fmt.Errorf("the prefill worker: %w", err)
	}
	said, err := a.complete(ctx, tokens, a.w.Ranks[0], map[string]any{"kv_transfer_params": map[string]any{"do_remote_decode": true, "do_remote_prefill": false}})
	switch {
	case err != nil:
		return answer{}, fmt.Errorf("the prefill worker: %w", err)
	case len(said.Transfer) == 0 || string(said.Transfer) == "null":
		return answer{}, errNoTransfer
	}
	if said, err = b.complete(ctx, tokens, b.w.Ranks[0], map[string]any{"kv_transfer_params": said.Transfer}); err != nil {
		return answer{}, fmt.Errorf("the decode worker: %w", err)
	}
	return said, nil
}

// meet is SGLang's way: both get the prompt at once.
func (g *gathering) meet(ctx context.Context, a, b *engine, tokens []uint32, n uint64) (answer, error) {
	host, port, err := a.bootstrap()
	if err != nil {
		return answer{}, err
	}
	if err := reachable(ctx, host, port); err != nil {
		return answer{}, fmt.Errorf("the prefill worker's bootstrap address: %w", err)
	}
	more := map[string]any{"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": (g.cfg.Seed + n) >> 2}
	return atOnce(ctx, a, b, tokens, more, more)
}

// pull is vLLM's MooncakeConnector.
func (g *gathering) pull(ctx context.Context, a, b *engine, tokens []uint32, n uint64) (answer, error) {
	host, port, err := a.bootstrap()
	if err != nil {
		return answer{}, err
	}
	at := "http://" + net.JoinHostPort(host, strconv.Itoa(port))
	var list map[uint32]struct {
		Engine string `json:"engine_id"`
	}
	server := engine{g: g, w: &registry.Worker{Endpoints: registry.Endpoints{HTTP: at}}, bare: true}
	if err := server.read(ctx, http.MethodGet, "/query", nil, &list); err != nil {
		return answer{}, fmt.Errorf("the prefill worker's bootstrap server: %w", err)
	}
	id := fmt.Sprintf("kvctl-%x", g.cfg.Seed+n)
	params := func(p map[string]any) map[string]any { return map[string]any{"kv_transfer_params": p} }
	return atOnce(ctx, a, b, tokens, params(map[string]any{"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": id}),
		params(map[string]any{"do_remote_decode": false, "do_remote_prefill": true, "transfer_id": id, "remote_bootstrap_addr": at,
			"remote_engine_id": list[a.w.Ranks[0]].Engine}))
}

// atOnce sends both workers their parts at the same time, and returns the decode worker's answer.
func atOnce(ctx context.Context, a, b *engine, tokens []uint32, first, then map[string]any) (said answer, err error) {
	errs := make([]error, 2)
	var both sync.WaitGroup
	both.Go(func() { _, errs[0] = a.complete(ctx, tokens, a.w.Ranks[0], first) })
	both.Go(func() { said, errs[1] = b.complete(ctx, tokens, b.w.Ranks[0], then) })
	both.Wait()
	for i, who := range []string{"prefill", "decode"} {
		if errs[i] != nil {
			return answer{}, fmt.Errorf("the %s worker: %w", who, errs[i])
		}
	}
	return said, nil
}

// short is a text for a line of a table.
func short(s string) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "")), " ")
	if r := []rune(s); len(r) > 160 {
		return string(r[:160]) + "…"
	}
	return s
}
