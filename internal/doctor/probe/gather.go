package probe

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
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
	ranks  map[string]int // that are registered at an engine's address

	mu  sync.Mutex
	own map[uint64]string          // local hashes of blocks that only this worker, by name, has a prompt of
	met map[string]map[string]bool // of which workers' prompts something was heard from a worker, by name
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
	g := &gathering{cfg: cfg, ranks: map[string]int{}, own: map[uint64]string{}, met: map[string]map[string]bool{}, client: &http.Client{Transport: &transport, Timeout: cfg.Answer,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	g.files.open = func(ctx context.Context, w *registry.Worker, kind string) (model, error) { return g.load(ctx, w, kind) }

	for i := range entries {
		g.ranks[entries[i].Endpoints.HTTP] += len(entries[i].Ranks)
	}
	facts := make([]doctor.Facts, len(entries))
	g.each(len(entries), func(i int) { facts[i] = g.worker(ctx, &entries[i], uint64(i)) })
	shareEngines(facts)
	g.mixed(facts)
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
				f.Worker.Seen, f.Worker.CacheGroups, f.Worker.Hybrid = entries[j].Seen, entries[j].CacheGroups, entries[j].Hybrid
			}
		}
	}
	join(facts)
	return facts, nil
}

// unexplained reports whether blocks of a worker did not arrive, which what its publisher is yet to register may
// explain.
func unexplained(f doctor.Facts) bool {
	return (f.Worker.Transport == registry.JetStream || f.Worker.Transport == registry.Core) &&
		slices.ContainsFunc(f.Ranks, func(r doctor.Rank) bool { return r.Blocks > 0 && r.Heard < r.Blocks })
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
// of its own, and all of them may be there for other groups, too.
func shareEngines(facts []doctor.Facts) {
	type engine struct {
		sp event.Space
		at string
	}
	of := func(f *doctor.Facts) engine { return engine{f.Worker.Space(), f.Worker.Endpoints.HTTP} }
	ranks := map[engine]int{}
	for i := range facts {
		ranks[of(&facts[i])] += max(1, len(facts[i].Worker.Ranks))
	}
	for i := range facts {
		if e := facts[i].Engine; e != nil {
			e.Registered = ranks[of(&facts[i])]
		}
	}
}

// worker looks at one worker alone.
func (g *gathering) worker(ctx context.Context, e *registry.Entry, n uint64) doctor.Facts {
	f := doctor.Facts{Worker: e.Worker, Mismatch: e.Mismatch, Conflict: e.Conflict}
	if !e.Present() {
		f.Absent = e.State.String()
		return f
	}
	if e.Endpoints.HTTP == "" {
		return f
	}
	f.Deaf = deaf(ctx, &f.Worker)
	en := g.newEngine(&f.Worker)
	f.Engine = en.describe(ctx)
	if f.Engine.Error != "" {
		f.Ranks = nil
		return f
	}
	f.Engine.Tokens, f.Engine.TokensBy = g.compare(ctx, en, f.Engine.Kind)
	if f.Worker.Role == registry.Prefill && f.Worker.KVTransfer == registry.TransferSGLang {
		return f // it takes none without a decode worker
	}
	f.Ranks = g.prompts(ctx, en, n)
	return f
}

// deaf returns at which of the worker's other addresses nobody answers, and why.
func deaf(ctx context.Context, w *registry.Worker) map[doctor.Place]string {
	list := map[doctor.Place]string{}
	for _, p := range doctor.Places(w) {
		if err := reachable(ctx, p.At); err != nil {
			list[p] = short(err.Error())
		}
	}
	return list
}

// mixed notes of which workers' engines the events are that were heard from others.
func (g *gathering) mixed(facts []doctor.Facts) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range facts {
		me := called(&facts[i].Worker)
		for j := range facts[i].Ranks {
			r := &facts[i].Ranks[j]
			for _, of := range slices.Sorted(maps.Keys(g.met[me])) {
				r.Of = cmp.Or(r.Of, of)
			}
			for _, by := range slices.Sorted(maps.Keys(g.met)) {
				if g.met[by][me] {
					r.By = cmp.Or(r.By, by)
				}
			}
		}
	}
}

// whose notes who has which blocks of prompts to itself.
func (g *gathering) whose(w *registry.Worker, local []uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range local {
		g.own[l] = called(w)
	}
}

// meets notes that a block was heard from a worker that is no prompt's of its own.
func (g *gathering) meets(w *registry.Worker, local uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of, me := g.own[local], called(w)
	if of == "" || of == me {
		return
	}
	if g.met[me] == nil {
		g.met[me] = map[string]bool{}
	}
	g.met[me][of] = true
}

// prompts sends each rank a prompt, and once more, and listens. The prompts are the n-th worker's own, but for the
// first block of the first rank's, which all have to compare what they call it.
func (g *gathering) prompts(ctx context.Context, en *engine, n uint64) []doctor.Rank {
	ears := g.listen(ctx, en.w)
	defer ears.close()
	ranks := make([]doctor.Rank, len(en.w.Ranks))
	g.each(len(ranks), func(i int) { ranks[i] = g.rank(ctx, en, ears, i, g.cfg.Seed+n<<20+uint64(i)+1) })
	for i := range ranks {
		ears.tell(&ranks[i])
	}
	return ranks
}

func (g *gathering) rank(ctx context.Context, en *engine, ears *ears, i int, seed uint64) doctor.Rank {
	r := doctor.Rank{DPRank: en.w.Ranks[i], Cached: -1, OtherRank: -1}
	size := int(en.w.BlockSize)
	tokens := en.prompt(ctx, seed, g.length(size))
	shared := 0 // blocks
	if i == 0 {
		copy(tokens, en.prompt(ctx, g.cfg.Seed, g.length(size))[:size])
		shared = 1
	}
	local, err := blockhash.LocalHashes(nil, tokens, size, blockhash.Options{Seed: blockhash.Seed(en.w.Lora, "")})
	if err != nil {
		r.Error = err.Error()
		return r
	}
	ears.expect(local)
	g.whose(en.w, local[shared:])
	a, err := en.complete(ctx, tokens, r.DPRank, nil)
	if err != nil {
		r.Error = "a prompt as tokens is refused: " + err.Error()
		return r
	}
	answered := time.Now()
	r.Before = a.cached()
	own := local[shared:] // where several workers have one engine, the first of them got the shared one
	r.Blocks = len(own)
	last := ears.wait(ctx, r.DPRank, own, g.cfg.Listen)
	if r.Heard, r.OtherRank = ears.heard(r.DPRank, own); r.Heard > 0 {
		r.Late = max(0, last.Sub(answered))
	}
	if shared > 0 {
		r.First = ears.engineHash(r.DPRank, local[0])
	}
	if a, err = en.complete(ctx, tokens, r.DPRank, nil); err != nil {
		r.Error = "the prompt is refused when it comes once more: " + err.Error()
		return r
	}
	r.Cached = a.cached()
	return r
}

// length is that of a prompt's complete blocks.
func (g *gathering) length(size int) int { return size * max(4, (g.cfg.Tokens+size-1)/size) }

// pairs tries each prefill worker and each decode worker with one of the others that it can be paired with.
func (g *gathering) pairs(ctx context.Context, facts []doctor.Facts) {
	var prefill, decode []*doctor.Facts
	for i := range facts {
		switch f := &facts[i]; {
		case f.Absent != "" || f.Engine == nil || f.Engine.Error != "":
		case f.Worker.Role == registry.Prefill:
			prefill = append(prefill, f)
		case f.Worker.Role == registry.Decode:
			decode = append(decode, f)
		}
	}
	type pair struct{ first, then *doctor.Facts }
	var tried []pair
	has := map[*doctor.Facts]bool{}
	try := func(list, others []*doctor.Facts, as func(f, other *doctor.Facts) pair) {
		for i, f := range list {
			fit := slices.DeleteFunc(slices.Clone(others), func(o *doctor.Facts) bool {
				p := as(f, o)
				return !pairable(&p.first.Worker, &p.then.Worker)
			})
			if has[f] || len(fit) == 0 {
				continue
			}
			other := fit[i%len(fit)]
			has[f], has[other] = true, true
			tried = append(tried, as(f, other))
		}
	}
	try(decode, prefill, func(d, p *doctor.Facts) pair { return pair{p, d} })
	try(prefill, decode, func(p, d *doctor.Facts) pair { return pair{p, d} })
	found := make([]doctor.Pair, len(tried))
	g.each(len(tried), func(i int) { found[i] = g.pair(ctx, &tried[i].first.Worker, &tried[i].then.Worker, uint64(1000+i)) })
	for i, p := range tried {
		p.first.Pair = worse(p.first.Pair, found[i], called(&p.then.Worker))
		p.then.Pair = worse(p.then.Pair, found[i], called(&p.first.Worker))
	}
}

// worse is what is said of a worker that was tried with several others.
func worse(was *doctor.Pair, now doctor.Pair, other string) *doctor.Pair {
	if was != nil && (was.Error != "" || now.Error == "") {
		return was
	}
	now.Other = other
	return &now
}

// pairable reports whether the two say what is needed to try them together, and nothing that speaks against it; else
// that is a finding of its own.
func pairable(first, then *registry.Worker) bool {
	return first.Space() == then.Space() && first.KVTransfer != "" && first.KVTransfer.Reaches(then.KVTransfer)
}

func called(w *registry.Worker) string {
	if w.Name != "" {
		return w.Name
	}
	return fmt.Sprint(w.ID)
}

// pair has one worker compute a prompt for the other.
func (g *gathering) pair(ctx context.Context, first, then *registry.Worker, n uint64) doctor.Pair {
	a, b := g.newEngine(first), g.newEngine(then)
	size := int(first.BlockSize)
	tokens := a.prompt(ctx, g.cfg.Seed+n, g.length(size))
	p := doctor.Pair{Tokens: len(tokens) / size * size, Cached: -1}
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
	}
	if p.Met = !errors.As(err, new(notMet)); err != nil {
		p.Error = err.Error()
		return p
	}
	p.Cached = said.cached()
	return p
}

// notMet says that a prefill worker is not met where it is registered to be.
type notMet struct{ error }

func (e notMet) Unwrap() error { return e.error }

// remote is a request's parameters of the transfer. Nothing ends the first one's token: what a text's end ends is not kept
// for others.
func remote(params map[string]any) map[string]any {
	return map[string]any{"kv_transfer_params": params, "ignore_eos": true}
}

// relay is vLLM's NIXL connector, and its MoRIIO connector where decode engines read.
func (g *gathering) relay(ctx context.Context, a, b *engine, tokens []uint32) (answer, error) {
	said, err := a.complete(ctx, tokens, a.w.Ranks[0], remote(map[string]any{"do_remote_decode": true, "do_remote_prefill": false}))
	if err != nil {
		return answer{}, fmt.Errorf("the prefill worker: %w", err)
	}
	var params map[string]any
	d := json.NewDecoder(bytes.NewReader(said.Transfer))
	d.UseNumber()
	if err := d.Decode(&params); err != nil || params == nil {
		return answer{}, errNoTransfer
	}
	// Else vLLM's decode engine (0.33.0) says what the prefill engine had, in place of what it found itself, which is
	// what came.
	delete(params, "remote_prefill_cached_tokens")
	if said, err = b.complete(ctx, tokens, b.w.Ranks[0], map[string]any{"kv_transfer_params": params}); err != nil {
		return answer{}, fmt.Errorf("the decode worker: %w", err)
	}
	return said, nil
}

// meet is SGLang's way: both get the prompt at once.
func (g *gathering) meet(ctx context.Context, a, b *engine, tokens []uint32, n uint64) (answer, error) {
	host, port, err := a.bootstrap()
	if err == nil {
		err = reachable(ctx, net.JoinHostPort(host, strconv.Itoa(port)))
	}
	if err != nil {
		return answer{}, notMet{fmt.Errorf("the prefill worker's bootstrap address: %w", err)}
	}
	more := map[string]any{"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": (g.cfg.Seed + n) >> 2}
	return atOnce(ctx, a, b, tokens, more, more)
}

// pull is vLLM's MooncakeConnector.
func (g *gathering) pull(ctx context.Context, a, b *engine, tokens []uint32, n uint64) (answer, error) {
	host, port, err := a.bootstrap()
	if err != nil {
		return answer{}, notMet{fmt.Errorf("the prefill worker's bootstrap address: %w", err)}
	}
	at := "http://" + net.JoinHostPort(host, strconv.Itoa(port))
	engine, err := g.connectorOf(ctx, a.w, at)
	if err != nil {
		return answer{}, notMet{fmt.Errorf("the prefill worker's bootstrap server at %s: %w", at, err)}
	}
	id := fmt.Sprintf("kvctl-%x", g.cfg.Seed+n)
	return atOnce(ctx, a, b, tokens, remote(map[string]any{"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": id}),
		map[string]any{"kv_transfer_params": map[string]any{"do_remote_decode": false, "do_remote_prefill": true, "transfer_id": id, "remote_bootstrap_addr": at,
			"remote_engine_id": engine}})
}

// connectorOf asks a bootstrap server for the worker's engines, all of which it must know, and returns the first one's id.
func (g *gathering) connectorOf(ctx context.Context, w *registry.Worker, at string) (string, error) {
	var list map[uint32]struct {
		Engine string `json:"engine_id"`
	}
	server := engine{g: g, w: &registry.Worker{Endpoints: registry.Endpoints{HTTP: at}}, bare: true}
	if err := server.read(ctx, http.MethodGet, "/query", nil, &list); err != nil {
		return "", err
	}
	for _, rank := range w.Ranks {
		if list[rank].Engine == "" {
			return "", fmt.Errorf("it does not list rank %d (it lists %d)", rank, len(list))
		}
	}
	return list[w.Ranks[0]].Engine, nil
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
