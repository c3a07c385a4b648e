package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas"
	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/enginetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/replica"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

// tiers is a depth, or a number of blocks, for each tier.
type tiers = [event.NumTiers]uint32

// copyOfIndex is a program that has a copy of the index.
type copyOfIndex interface {
	// start starts the program, again after stop, and waits until it is ready.
	start(t *testing.T)
	// stop ends it in order.
	stop(t *testing.T)
	// url returns where its routes of the index are.
	url() string
	// weigh returns the depths in a prompt that it chooses by, of the ranks that have
	// any; nil if it chooses nothing.
	weigh(ctx context.Context, sp event.Space, prompt []uint64, ranks []shard.RankID) (map[shard.RankID]tiers, error)
}

// The fleet's workers.
const (
	streamed  = iota + 1 // through JetStream, with the engine scheme
	live                 // through NATS without a stream, with the engine scheme, by hash alone now and then
	direct               // from its own ZMQ sockets
	leaving              // leaves, and returns
	shrinking            // has a rank less in the end
	named                // through JetStream, stores nothing but by hash
)

// one is a fleet of which some programs have a copy each.
type one struct {
	t      *testing.T
	broker *broker.Broker
	space  event.Space
	rand   *rand.Rand
	chains [][]uint64
	shared [][]uint64 // that streamed stores, and removes nothing of
	pubs   map[uint64]*publish.Publisher
	joined map[uint64]*registry.Announcement
	engine *enginetest.Mock

	partitions int // streams of the space; 0 is one

	oracle *core.Oracle // of all but direct, which engine's is
	ranks  []shard.RankID
}

func newOne(t *testing.T, home string, partitions int) *one {
	t.Helper()
	b, err := broker.Open(t.Context(), broker.Config{URL: broker.Embedded, DataDir: filepath.Join(home, "data"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	f := &one{t: t, broker: b, space: event.Space{Model: "m", BlockSize: enginetest.BlockSize}, rand: rand.New(rand.NewPCG(5, 6)),
		pubs: map[uint64]*publish.Publisher{}, joined: map[uint64]*registry.Announcement{}, oracle: core.NewOracle(),
		engine: enginetest.NewMock(t, 9, 2, 0), partitions: partitions}
	for i := range 24 { // chains that share prefixes
		chain := []uint64{f.rand.Uint64()}
		if i%12 != 0 {
			old := f.chains[i/12*12+f.rand.IntN(i%12)]
			chain = slices.Clone(old[:1+f.rand.IntN(len(old))])
		}
		for range 1 + f.rand.IntN(12) {
			chain = append(chain, f.rand.Uint64())
		}
		f.chains = append(f.chains, chain)
	}
	t.Cleanup(func() { // the test is over
		ctx, cancel := context.WithTimeout(context.Background(), waittest.Patience) //nolint:usetesting // t's context has ended
		defer cancel()
		for _, a := range f.joined {
			_ = a.Close(ctx)
		}
		for _, p := range f.pubs {
			_ = p.Close(ctx)
		}
		_ = b.Close()
	})
	f.chains, f.shared = f.chains[:12], f.chains[12:]
	for id := uint64(streamed); id <= named; id++ {
		f.join(id, []uint32{0, 1})
	}
	return f
}

// scheme is the engine scheme of a worker.
func scheme(worker uint64) string {
	if worker == streamed || worker == live || worker == named {
		return "sha"
	}
	return ""
}

// worker is what the registry is told of a worker.
func (f *one) worker(id uint64, ranks []uint32) registry.Worker {
	w := registry.Worker{ID: id, Model: f.space.Model, BlockSize: f.space.BlockSize, Ranks: ranks, EngineScheme: scheme(id),
		Transport: registry.JetStream, Endpoints: registry.Endpoints{HTTP: "http://127.0.0.1:9"}}
	if p := f.pubs[id]; p != nil {
		w.Incarnation = p.Incarnation()
	}
	switch id {
	case live:
		w.Transport = registry.Core
	case direct:
		w.Transport = registry.ZMQ
		w.Endpoints.Events, w.Endpoints.Replay = map[uint32]string{}, map[uint32]string{}
		for _, n := range ranks {
			w.Endpoints.Events[n], w.Endpoints.Replay[n] = f.engine.Endpoint(int(n))
		}
	}
	return w
}

// join makes a worker publish, unless it does, and announces it.
func (f *one) join(id uint64, ranks []uint32) {
	f.t.Helper()
	if id != direct && f.pubs[id] == nil {
		// Without heartbeats: the first would bring back a worker that has left.
		cfg := publish.Config{Conn: f.broker.Conn(), Space: f.space, Worker: id, Heartbeat: -1, Log: slog.New(slog.DiscardHandler)}
		cfg.Stream.Partitions = f.partitions
		if id == live {
			cfg.Transport = publish.CoreNATS
		}
		pub, err := publish.Open(f.t.Context(), cfg)
		if err != nil {
			f.t.Fatal(err)
		}
		f.pubs[id] = pub
	}
	a, err := registry.Register(f.t.Context(), f.worker(id, ranks), registry.AnnounceConfig{Conn: f.broker.Conn(), Lease: time.Minute})
	if err != nil {
		f.t.Fatal(err)
	}
	f.joined[id] = a
	for _, n := range ranks {
		if k := (shard.RankID{Worker: id, DPRank: n}); !slices.Contains(f.ranks, k) {
			f.ranks = append(f.ranks, k)
		}
	}
}

// holder numbers the ranks for the oracle.
func holder(worker uint64, rank uint32) core.Holder { return core.Holder(worker*2) + rank }

// say publishes an event, and tells it to the oracle.
func (f *one) say(worker uint64, ev event.Event) {
	f.t.Helper()
	if err := f.pubs[worker].Publish(f.t.Context(), ev); err != nil {
		f.t.Fatal(err)
	}
	h := holder(worker, ev.DPRank)
	switch {
	case ev.Kind == event.Removed:
		f.oracle.Remove(h, &ev, false)
	case ev.Kind == event.Cleared:
		f.oracle.Clear(h, ev.Tier, ev.AllTiers)
	case len(ev.Local) > 0:
		f.oracle.Store(h, &ev, false)
	default:
		core.StoreHashOnly(f.oracle, h, &ev, false, func(i int) (core.Holder, bool) {
			from, _, ok := core.Knower(f.oracle, ev.Engine[i], func(h core.Holder) bool { return scheme(uint64(h/2)) == scheme(worker) })
			return from, ok
		})
	}
}

func (f *one) flush() {
	f.t.Helper()
	for _, p := range f.pubs {
		if err := p.Flush(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
	}
}

// publish makes n random events with their content, each on any tier.
func (f *one) publish(n int, workers ...uint64) {
	f.t.Helper()
	for range n {
		chain := f.chains[f.rand.IntN(len(f.chains))]
		chain = chain[:1+f.rand.IntN(len(chain))]
		// The engine names a block by its sequence hash.
		hashes := blockhash.SequenceHashes(nil, chain)
		ev := event.Event{Kind: event.Stored, DPRank: uint32(f.rand.IntN(2)), Engine: hashes, Local: chain, Tier: event.Tier(f.rand.IntN(3))}
		switch f.rand.IntN(20) {
		case 0:
			ev = event.Event{Kind: event.Cleared, DPRank: ev.DPRank, AllTiers: true}
		case 1, 2, 3, 4, 5, 6:
			ev.Kind, ev.Local, ev.Engine = event.Removed, nil, hashes[len(hashes)-1:]
		}
		f.say(workers[f.rand.IntN(len(workers))], ev)
	}
	f.flush()
}

// share makes streamed store what others then name.
func (f *one) share() {
	f.t.Helper()
	for _, chain := range f.shared {
		f.say(streamed, event.Event{Kind: event.Stored, DPRank: 0, Engine: blockhash.SequenceHashes(nil, chain), Local: chain})
	}
	f.flush()
}

// name makes workers store blocks by their hashes alone: some blocks of each
// shared chain, from its first on, on one tier and the next.
func (f *one) name(workers ...uint64) {
	f.t.Helper()
	for i, chain := range f.shared {
		hashes := blockhash.SequenceHashes(nil, chain)
		worker, rank := workers[i%len(workers)], uint32(i/2%2)
		half := 1 + f.rand.IntN(len(hashes))
		f.say(worker, event.Event{Kind: event.Stored, DPRank: rank, Engine: hashes[:half], Tier: event.Device})
		if half < len(hashes) {
			f.say(worker, event.Event{Kind: event.Stored, DPRank: rank, Engine: hashes[half:], Tier: event.HostPinned})
		}
	}
	f.flush()
}

// agree waits until every copy has the oracle's depths for every prompt, and its
// numbers of blocks.
func (f *one) agree(when string, copies map[string]copyOfIndex) {
	f.t.Helper()
	held := f.agreeOnDepths(when, copies)
	for name, c := range copies {
		f.until(when, name, func() error {
			text, err := get(f.t.Context(), c.url()+"/metrics")
			if err != nil {
				return err
			}
			var have [event.NumTiers]int
			for t := range have {
				have[t] = int(sum(text, "kvatlas_index_blocks", `tier="`+event.Tier(t).String()+`"`))
			}
			if have != held {
				return fmt.Errorf("%d blocks are held, the oracle says %d", have, held)
			}
			return nil
		})
	}
}

// agreeOnDepths waits until every copy has the oracle's depths for every prompt, and
// returns how many blocks that holds on each tier.
func (f *one) agreeOnDepths(when string, copies map[string]copyOfIndex) [event.NumTiers]int {
	f.t.Helper()
	oracles := map[uint64]*core.Oracle{}
	var prompts [][]uint64
	for rank := range f.engine.Ranks {
		o := f.engine.Oracle(rank, 0)
		oracles[uint64(rank)] = o
		for i, n := range o.KnownHashes(0) {
			if i%40 == 0 {
				prompts = append(prompts, o.Chain(0, n.Engine))
			}
		}
	}
	prompts = slices.Concat(prompts, f.chains, f.shared)
	var held [event.NumTiers]int
	for t := range event.Tier(event.NumTiers) {
		for _, o := range oracles {
			held[t] += o.Held(0, t)
		}
		for _, h := range f.oracle.Holders() {
			held[t] += f.oracle.Held(h, t)
		}
	}
	if held[event.Device] == 0 || held[event.HostPinned] == 0 || held[event.Disk] == 0 {
		f.t.Fatalf("%s: nothing is held on some tier: %d", when, held)
	}
	var m core.Matches
	for _, prompt := range prompts {
		want := map[shard.RankID]tiers{}
		note := func(o *core.Oracle, id func(core.Holder) shard.RankID) {
			o.Find(prompt, &m)
			for t := range event.Tier(event.NumTiers) {
				m.Each(t, func(h core.Holder, depth uint32) {
					d := want[id(h)]
					d[t] = depth
					want[id(h)] = d
				})
			}
		}
		note(f.oracle, func(h core.Holder) shard.RankID { return shard.RankID{Worker: uint64(h / 2), DPRank: h % 2} })
		for rank, o := range oracles {
			note(o, func(core.Holder) shard.RankID { return shard.RankID{Worker: direct, DPRank: uint32(rank)} })
		}
		for name, c := range copies {
			f.until(when, name, func() error {
				have, err := find(f.t.Context(), c.url(), f.space, prompt)
				if err != nil || !maps.Equal(have, want) {
					return fmt.Errorf("a prompt of %d blocks: %v, the oracle says %v; %w", len(prompt), have, want, err)
				}
				have, err = c.weigh(f.t.Context(), f.space, prompt, f.ranks)
				if err != nil || have != nil && !maps.Equal(have, want) {
					return fmt.Errorf("a prompt of %d blocks is weighed with %v, the oracle says %v; %w", len(prompt), have, want, err)
				}
				return nil
			})
		}
	}
	return held
}

func (f *one) until(when, who string, do func() error) {
	f.t.Helper()
	waittest.Until(f.t, func() error {
		if err := do(); err != nil {
			return fmt.Errorf("%s, %s: %w", when, who, err)
		}
		return nil
	})
}

// An index is the same in every program that has a copy of it, however the events
// of its workers come, and however it came to have them.
func TestEveryReplicaHasTheOraclesAnswers(t *testing.T) {
	home := t.TempDir()
	f := newOne(t, home, 0)
	copies := newCopies(home, 1<<30)
	f.engine.Publish(30)
	f.publish(100, streamed, live, leaving, shrinking)
	for _, c := range copies {
		c.start(t)
	}
	f.engine.Publish(30)
	f.publish(100, streamed, live, leaving, shrinking)
	f.share()
	f.agree("after events with their content", copies)
	f.name(live, named)
	f.agree("after stores by hash alone", copies)

	away := core.NewOracle() // what the engine of the worker that is away goes on holding
	for rank := range uint32(2) {
		h := holder(leaving, rank)
		copyHolder(away, f.oracle, h)
		f.oracle.Clear(h, 0, true)
	}
	if err := f.joined[leaving].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.oracle.Clear(holder(shrinking, 1), 0, true)
	if err := f.joined[shrinking].Update(t.Context(), f.worker(shrinking, []uint32{0})); err != nil {
		t.Fatal(err)
	}
	f.agree("without a worker, and without a rank of another", copies)
	for rank := range uint32(2) {
		copyHolder(f.oracle, away, holder(leaving, rank))
	}
	f.join(leaving, []uint32{0, 1})
	f.agree("with the worker that is back", copies)
	f.publish(50, streamed, live, leaving, shrinking) // so that a last snapshot is due

	for name, c := range copies {
		c.stop(t)
		f.publish(50, streamed, live, leaving)
		c.start(t)
		text, err := get(t.Context(), c.url()+"/metrics")
		if err != nil {
			t.Fatal(err)
		}
		if n := sum(text, "kvatlas_snapshot_restores_total", `result="loaded"`); n != 1 {
			t.Errorf("%s started from %v snapshots", name, n)
		}
	}
	f.engine.Publish(20)
	f.publish(50, streamed, live, leaving)
	f.agree("after a restart from a snapshot", copies)
	f.alike(copies)
	for _, c := range copies {
		c.stop(t)
	}
}

// alike checks that the copies tell of themselves alike: their workers and spaces, the
// metrics that there are, and of the index how many spaces, ranks and blocks.
func (f *one) alike(copies map[string]copyOfIndex) {
	f.t.Helper()
	told := map[string]map[string]string{}
	note := func(what, who, text string) {
		if told[what] == nil {
			told[what] = map[string]string{}
		}
		told[what][who] = text
	}
	for name, c := range copies {
		for _, path := range []string{"/v1/spaces", "/v1/openapi.yaml"} {
			text, err := get(f.t.Context(), c.url()+path)
			if err != nil {
				f.t.Fatal(err)
			}
			note(path, name, string(text))
		}
		var families, index []string
		text, err := get(f.t.Context(), c.url()+"/metrics")
		if err != nil {
			f.t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			family, _, _ := strings.Cut(line, "{")
			family, _, _ = strings.Cut(family, " ")
			for _, prefix := range []string{"index", "ingest", "registry", "snapshot", "direct", "http"} {
				if strings.HasPrefix(family, "kvatlas_"+prefix+"_") {
					families = append(families, family)
				}
			}
			switch family {
			case "kvatlas_index_spaces", "kvatlas_index_ranks", "kvatlas_index_blocks", "kvatlas_index_memory_budget_bytes":
				index = append(index, line)
			}
		}
		slices.Sort(families)
		note("the families of metrics", name, strings.Join(slices.Compact(families), "\n"))
		note("the index's metrics", name, strings.Join(index, ""))
	}
	for what, texts := range told {
		for name, text := range texts {
			if want := texts["kvindexer"]; text != want || len(want) < 10 {
				f.t.Errorf("%s of %s:\n%s\nkvindexer's:\n%s", what, name, text, want)
			}
		}
	}
}

// The memory budget holds in every program: it refuses blocks, counts them, and
// uses no more memory.
func TestEveryReplicaKeepsToItsBudget(t *testing.T) {
	home := t.TempDir()
	f := newOne(t, home, 0)
	const budget = 8 << 20
	copies := newCopies(home, budget)
	f.publish(10, streamed, live) // who says nothing is asked for it, for long
	for _, c := range copies {
		c.start(t)
	}
	const blocks = 400 * 2000 // of 26 bytes or so
	for range blocks / 2000 {
		chain := make([]uint64, 2000)
		for i := range chain {
			chain[i] = f.rand.Uint64()
		}
		if err := f.pubs[streamed].Stored(t.Context(), 0, event.Device, publish.Root(), chain, chain); err != nil {
			t.Fatal(err)
		}
	}
	f.flush()
	for name, c := range copies {
		f.until("beyond the budget", name, func() error {
			text, err := get(t.Context(), c.url()+"/metrics")
			if err != nil {
				return err
			}
			held, refused := sum(text, "kvatlas_index_blocks"), sum(text, "kvatlas_index_refused_blocks_total")
			used, full := sum(text, "kvatlas_index_memory_bytes"), sum(text, "kvatlas_index_memory_full")
			if lag := sum(text, "kvatlas_ingest_lag_messages"); lag > 0 || refused == 0 || held+refused < blocks || full != 1 || used > budget+4<<20 || // beyond, 4 MiB are for those who have less than their share
				sum(text, "kvatlas_index_memory_budget_bytes") != budget {
				return fmt.Errorf("%.0f blocks held, %.0f refused, %.0f bytes used, full %.0f, %.0f messages behind", held, refused, used, full, lag)
			}
			ready, err := get(t.Context(), c.url()+"/readyz?verbose")
			if err != nil || !strings.Contains(string(ready), "the memory budget is reached") {
				return fmt.Errorf("%w %s", err, ready)
			}
			return nil
		})
	}
	for _, c := range copies {
		c.stop(t)
	}
}

// copyHolder gives the holder in one index what it has in the other.
func copyHolder(to, from core.Index, h core.Holder) {
	r := core.Restorer{Index: to, Holder: h}
	from.Dump(h, func(ev *event.Event, copies []uint32) bool {
		r.Add(ev, copies)
		return true
	})
	r.Finish()
}

// newCopies returns one program of each kind, not started. The flags are of them all.
func newCopies(home string, budget int64) map[string]copyOfIndex {
	flags := []string{"--discover-every=50ms", fmt.Sprintf("--memory-budget=%d", budget)}
	return map[string]copyOfIndex{
		"kvindexer": &indexerCopy{home: home, flags: flags},
		"kvrouter":  &routerCopy{home: home, flags: flags},
		"the library": &libraryCopy{replica: replica.Config{
			NATS: replica.NATS{URL: replica.Embedded, DataDir: filepath.Join(home, "data")}, Discover: 50 * time.Millisecond,
			MemoryBudget: budget, Log: slog.New(slog.DiscardHandler),
		}},
	}
}

// find asks an index's routes for the depths of a prompt.
func find(ctx context.Context, url string, sp event.Space, prompt []uint64) (map[shard.RankID]tiers, error) {
	body, err := json.Marshal(map[string]any{"model": sp.Model, "hashes": prompt})
	if err != nil {
		return nil, err
	}
	var m matches
	if status, err := post(ctx, url+"/v1/find_matches", body, &m); err != nil || status != http.StatusOK || len(m.Spaces) != 1 {
		return nil, fmt.Errorf("status %d, error %w", status, err)
	}
	have := map[shard.RankID]tiers{}
	for _, w := range m.Spaces[0].Workers {
		id, err := strconv.ParseUint(w.WorkerID, 10, 64)
		if err != nil {
			return nil, err
		}
		for _, r := range w.Ranks {
			var d tiers
			for t, n := range r.tiers() {
				d[t] = uint32(n)
			}
			have[shard.RankID{Worker: id, DPRank: r.DPRank}] = d
		}
	}
	return have, nil
}

// indexerCopy is a kvindexer.
type indexerCopy struct {
	home  string
	flags []string
	in    indexer
}

func (c *indexerCopy) start(t *testing.T) { t.Helper(); c.in = startIndexer(t, c.home, c.flags...) }
func (c *indexerCopy) stop(t *testing.T)  { t.Helper(); c.in.stop() }
func (c *indexerCopy) url() string        { return c.in.url }

func (c *indexerCopy) weigh(context.Context, event.Space, []uint64, []shard.RankID) (map[shard.RankID]tiers, error) {
	return nil, nil
}

// routerCopy is a kvrouter, with the routes of the index at its admin port.
type routerCopy struct {
	home          string
	flags         []string
	public, admin string // URLs
	process       *process
}

func (c *routerCopy) start(t *testing.T) {
	t.Helper()
	// Nothing answers where the engines are said to be.
	c.process, c.public = startRouter(t, c.home, append([]string{"--admin-listen=127.0.0.1:0", "--health-every=0s", "--models-every=0s"}, c.flags...)...)
	c.admin = "http://" + c.process.logged("admin port", "address")
}
func (c *routerCopy) stop(t *testing.T) { t.Helper(); c.process.stop() }
func (c *routerCopy) url() string       { return c.admin }

func (c *routerCopy) weigh(ctx context.Context, sp event.Space, prompt []uint64, ranks []shard.RankID) (map[shard.RankID]tiers, error) {
	have := map[shard.RankID]tiers{}
	for _, k := range ranks {
		body, err := json.Marshal(map[string]any{"model_name": sp.Model, "block_hashes": prompt, "worker_id": k.Worker, "dp_rank": k.DPRank})
		if err != nil {
			return nil, err
		}
		var chosen struct {
			Overlap struct {
				Longest uint32 `json:"longest_matched"`
				GPU, CPU,
				Disk uint32
			}
		}
		status, err := post(ctx, c.public+"/v1/select", body, &chosen)
		switch {
		case err != nil:
			return nil, err
		case status == http.StatusServiceUnavailable: // the worker, or its rank, is not there
			continue
		case status != http.StatusOK:
			return nil, fmt.Errorf("rank %v: status %d", k, status)
		}
		if o := chosen.Overlap; o.Longest > 0 {
			have[k] = tiers{o.GPU / sp.BlockSize, o.CPU / sp.BlockSize, o.Disk / sp.BlockSize, o.Longest / sp.BlockSize}
		}
	}
	return have, nil
}

// libraryCopy is this program, with the library in it.
type libraryCopy struct {
	replica replica.Config
	atlas   *kvatlas.Atlas
	routes  *httptest.Server
}

func (c *libraryCopy) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	var err error
	if c.atlas, err = kvatlas.Open(ctx, kvatlas.Config{Replica: c.replica}); err != nil {
		t.Fatal(err)
	}
	if err := c.atlas.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	routes, err := c.atlas.Replica().Handler()
	if err != nil {
		t.Fatal(err)
	}
	c.routes = httptest.NewServer(routes)
}

func (c *libraryCopy) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	c.routes.Close()
	if err := c.atlas.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

func (c *libraryCopy) url() string { return c.routes.URL }

func (c *libraryCopy) weigh(ctx context.Context, sp event.Space, prompt []uint64, _ []shard.RankID) (map[shard.RankID]tiers, error) {
	r, err := c.atlas.Router(sp)
	if err != nil {
		return nil, err
	}
	candidates, err := r.PotentialLoads(ctx, route.Prompt{Local: prompt}, route.Options{})
	if err != nil {
		return nil, err
	}
	have := map[shard.RankID]tiers{}
	for i := range candidates {
		if k := &candidates[i]; k.Cached[event.External] > 0 {
			have[k.RankID] = k.Cached
		}
	}
	return have, nil
}

// post posts JSON and reads the answer, if it is one of success.
func post(ctx context.Context, url string, body []byte, answer any) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if resp.StatusCode == http.StatusOK {
		err = json.NewDecoder(resp.Body).Decode(answer)
	}
	return resp.StatusCode, err
}
