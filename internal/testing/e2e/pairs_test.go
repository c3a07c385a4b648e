package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas"
	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/replica"
	"github.com/kvatlas/kvatlas/route"
)

// pairEngine publishes as SGLang does, with the tokens of its blocks in pairs as it sends
// them with EAGLE, EAGLE3 and MTP, or singly.
type pairEngine struct {
	*enginepub.Publisher
	pairs  bool
	oracle *core.Oracle
}

func newPairEngine(t *testing.T, pairs bool) *pairEngine {
	t.Helper()
	p, err := enginepub.New(enginepub.Config{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", WithTopic: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return &pairEngine{p, pairs, core.NewOracle()}
}

func (e *pairEngine) locals(t *testing.T, tokens []uint32, size int) []uint64 {
	t.Helper()
	local, err := blockhash.LocalHashes(nil, tokens, size, blockhash.Options{Eagle: e.pairs})
	if err != nil {
		t.Fatal(err)
	}
	return local
}

// publish stores some leading blocks of a prompt, or removes one of them.
func (e *pairEngine) publish(t *testing.T, rnd *rand.Rand, prompt []uint32, size int) {
	t.Helper()
	local := e.locals(t, prompt, size)
	if len(local) == 0 {
		return
	}
	local = local[:1+rnd.IntN(len(local))]
	ev := event.Event{Kind: event.Stored, Engine: blockhash.SequenceHashes(nil, local), Local: local}
	said := mptest.Map{"type", "BlockStored", "block_hashes", list(ev.Engine), "parent_block_hash", nil, "block_size", size, "lora_id", nil}
	if rnd.IntN(4) == 0 {
		ev = event.Event{Kind: event.Removed, Engine: ev.Engine[len(ev.Engine)-1:]}
		e.oracle.Remove(0, &ev, true)
		said = mptest.Map{"type", "BlockRemoved", "block_hashes", list(ev.Engine)}
	} else {
		e.oracle.Store(0, &ev, true)
		var tokens []any
		for i, token := range prompt[:len(local)*size] {
			if e.pairs {
				tokens = append(tokens, []any{token, prompt[i+1]})
			} else {
				tokens = append(tokens, token)
			}
		}
		said = append(said, "token_ids", tokens)
	}
	e.Publish(mptest.Encode([]any{1.5, []any{said}, 0}))
}

func list(hashes []uint64) (l []any) {
	for _, h := range hashes {
		l = append(l, h)
	}
	return l
}

// What EAGLE engines have is found by every program with the hashes that cover one token
// more, without any setting, beside workers of the same model that have no such blocks, and
// beside engines with several cache groups, of which the answer is what all of them allow to
// reuse: by their events alone, through a publisher and from their own socket.
func TestPairsOfTokensAreAskedForAsTheyAreHashed(t *testing.T) {
	const size, sidecar, direct, plain, hybridSidecar, hybridDirect = 4, 1, 2, 3, 4, 5
	home, rnd := t.TempDir(), rand.New(rand.NewPCG(20, 1))
	data := filepath.Join(home, "data")
	b, err := broker.Open(t.Context(), broker.Config{URL: broker.Embedded, DataDir: data, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	var prompts [][]uint32
	for i := range 12 {
		var prompt []uint32
		if i > 0 {
			old := prompts[rnd.IntN(i)]
			prompt = slices.Clone(old[:rnd.IntN(len(old))])
		}
		for range 1 + rnd.IntN(30) {
			prompt = append(prompt, rnd.Uint32N(1000))
		}
		prompts = append(prompts, prompt)
	}
	engines := map[uint64]*pairEngine{sidecar: newPairEngine(t, true), direct: newPairEngine(t, true), plain: newPairEngine(t, false)}
	hybrids := map[uint64]*hybridEngine{hybridSidecar: newHybridEngine(t, size), hybridDirect: newHybridEngine(t, size)}
	publish := func(n int) {
		for range n {
			for _, id := range []uint64{hybridSidecar, hybridDirect} {
				hybrids[id].publish(t, rnd, prompts[rnd.IntN(len(prompts))])
			}
			for _, id := range []uint64{sidecar, direct, plain} {
				engines[id].publish(t, rnd, prompts[rnd.IntN(len(prompts))], size)
			}
		}
	}
	publish(20)
	publisher := func(id uint64) *enginepub.Publisher {
		if e := hybrids[id]; e != nil {
			return e.Publisher
		}
		return engines[id].Publisher
	}
	startSidecar := func(id uint64) *process {
		return start(t, home, "kvpublisher", "--data-dir="+data, "--worker="+strconv.FormatUint(id, 10), "--model=m", "--block-size="+strconv.Itoa(size),
			"--engine="+publisher(id).Endpoint(), "--engine-replay="+publisher(id).ReplayEndpoint(), "--engine-http=http://127.0.0.1:9", "--admin-listen=",
			"--state-dir="+filepath.Join(home, "state"))
	}
	one := startSidecar(sidecar)
	startSidecar(plain)
	grouped := startSidecar(hybridSidecar)
	for _, id := range []uint64{direct, hybridDirect} {
		a, err := registry.Register(t.Context(), registry.Worker{ID: id, Model: "m", BlockSize: size, Transport: registry.ZMQ, Endpoints: registry.Endpoints{
			HTTP: "http://127.0.0.1:9", Events: map[uint32]string{0: publisher(id).Endpoint()}, Replay: map[uint32]string{0: publisher(id).ReplayEndpoint()},
		}}, registry.AnnounceConfig{Conn: b.Conn(), Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Stop)
	}
	flags := []string{"--discover-every=50ms"}
	indexer, router := &indexerCopy{home: home, flags: flags}, &routerCopy{home: home, flags: flags}
	library := &libraryCopy{replica: replica.Config{NATS: replica.NATS{URL: replica.Embedded, DataDir: data}, Discover: 50 * time.Millisecond,
		Log: slog.New(slog.DiscardHandler)}}
	copies := []copyOfIndex{indexer, router, library}
	for _, c := range copies {
		c.start(t)
	}
	defer func() {
		for _, c := range copies {
			c.stop(t)
		}
	}()
	asks := map[string]func(ctx context.Context, prompt []uint32) (map[uint64]uint32, error){
		"kvindexer": func(ctx context.Context, p []uint32) (map[uint64]uint32, error) {
			return findTokens(ctx, indexer.url(), p)
		},
		"kvrouter": func(ctx context.Context, p []uint32) (map[uint64]uint32, error) {
			return findTokens(ctx, router.url(), p)
		},
		"kvrouter's choices": func(ctx context.Context, p []uint32) (map[uint64]uint32, error) {
			return selectTokens(ctx, router.public, p, size)
		},
		"the library": func(ctx context.Context, p []uint32) (map[uint64]uint32, error) {
			return weighTokens(ctx, library.atlas, event.Space{Model: "m", BlockSize: size}, p)
		},
	}
	agree := func(when string) {
		t.Helper()
		var m core.Matches
		some := map[uint64]bool{}
		for _, prompt := range prompts {
			want := map[uint64]uint32{}
			for id, e := range engines {
				e.oracle.Find(e.locals(t, prompt, size), &m)
				m.Each(event.Device, func(_ core.Holder, depth uint32) { want[id], some[id] = depth, true })
			}
			for id, e := range hybrids {
				if n := e.reusable(t, prompt); n > 0 {
					want[id], some[id] = n, true
				}
			}
			for who, ask := range asks {
				eventually(t, waittest.Patience, func() error {
					have, err := ask(t.Context(), prompt)
					if err != nil || !maps.Equal(have, want) {
						return fmt.Errorf("%s, %s: a prompt of %d tokens: %v, the oracle says %v; %w", when, who, len(prompt), have, want, err)
					}
					return nil
				})
			}
		}
		if len(some) != len(engines)+len(hybrids) {
			t.Errorf("%s: only %v hold anything", when, some)
		}
	}
	agree("at first")
	publish(20)
	agree("after more events")
	one.stop()
	grouped.stop()
	startSidecar(sidecar)
	startSidecar(hybridSidecar)
	publish(5)
	agree("with sidecars that go on from their state")
	indexer.stop(t)
	publish(5)
	indexer.start(t)
	agree("with a kvindexer that goes on from its snapshot")

	// By now no answer is estimated; with a block of another cache group, of which its worker
	// does not tell what it needs, those are that list it, and what it holds is what it was.
	tokens := []any{uint32(1), uint32(2), uint32(3), uint32(4)}
	said := []any{
		mptest.Map{"type", "BlockStored", "block_hashes", []any{uint64(1)}, "parent_block_hash", nil, "block_size", size, "lora_id", nil, "token_ids", tokens},
		mptest.Map{"type", "BlockStored", "block_hashes", []any{uint64(1)}, "parent_block_hash", nil, "block_size", size, "lora_id", nil,
			"token_ids", tokens, "group_idx", 1, "kv_cache_spec_kind", "sliding_window"},
	}
	for _, want := range []bool{false, true} {
		for _, c := range copies {
			eventually(t, waittest.Patience, func() error {
				var m struct{ Spaces []struct{ Estimated bool } }
				status, err := post(t.Context(), c.url()+"/v1/find_matches", []byte(`{"model":"m","token_ids":[1,2,3,4]}`), &m)
				if err != nil || status != http.StatusOK || len(m.Spaces) != 1 || m.Spaces[0].Estimated != want {
					return fmt.Errorf("%s: %+v, status %d, want estimated %v; %w", c.url(), m, status, want, err)
				}
				return nil
			})
		}
		if !want {
			engines[plain].Publish(mptest.Encode([]any{1.5, said, 0}))
			engines[plain].oracle.Store(0, &event.Event{Kind: event.Stored, Engine: []uint64{1}, Local: engines[plain].locals(t, []uint32{1, 2, 3, 4}, size)}, true)
		}
	}
	agree("beside a cache group of which too little is known")
}

func findTokens(ctx context.Context, url string, prompt []uint32) (map[uint64]uint32, error) {
	body, err := json.Marshal(map[string]any{"model": "m", "token_ids": prompt})
	if err != nil {
		return nil, err
	}
	var m matches
	if status, err := post(ctx, url+"/v1/find_matches", body, &m); err != nil || status != http.StatusOK || len(m.Spaces) != 1 {
		return nil, fmt.Errorf("status %d, error %w", status, err)
	}
	have := map[uint64]uint32{}
	for _, w := range m.Spaces[0].Workers {
		id, err := strconv.ParseUint(w.WorkerID, 10, 64)
		if err != nil {
			return nil, err
		}
		have[id] = uint32(w.Longest)
	}
	return have, nil
}

func selectTokens(ctx context.Context, url string, prompt []uint32, size uint32) (map[uint64]uint32, error) {
	have := map[uint64]uint32{}
	for id := range uint64(5) {
		body, err := json.Marshal(map[string]any{"model_name": "m", "token_ids": prompt, "worker_id": id + 1})
		if err != nil {
			return nil, err
		}
		var chosen struct {
			Overlap struct {
				GPU uint32
			}
		}
		if status, err := post(ctx, url+"/v1/select", body, &chosen); err != nil || status != http.StatusOK {
			return nil, fmt.Errorf("worker %d: status %d, error %w", id+1, status, err)
		}
		if n := chosen.Overlap.GPU / size; n > 0 {
			have[id+1] = n
		}
	}
	return have, nil
}

func weighTokens(ctx context.Context, atlas *kvatlas.Atlas, sp event.Space, prompt []uint32) (map[uint64]uint32, error) {
	r, err := atlas.Router(sp)
	if err != nil {
		return nil, err
	}
	candidates, err := r.PotentialLoads(ctx, route.Prompt{Tokens: prompt}, route.Options{})
	if err != nil {
		return nil, err
	}
	have := map[uint64]uint32{}
	for i := range candidates {
		if n := candidates[i].Cached[event.Device]; n > 0 {
			have[candidates[i].Worker] = n
		}
	}
	return have, nil
}
