package query

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot/dump"
)

const dumpPath = "/v1/dump?model=m"

func newSpace(t *testing.T, shards int) (*shard.Set, *shard.Space) {
	t.Helper()
	set := shard.New(shard.Config{Shards: shards})
	t.Cleanup(set.Close)
	sp, err := set.Open(event.Space{Model: "m", BlockSize: 16})
	if err != nil {
		t.Fatal(err)
	}
	return set, sp
}

func digest(t *testing.T, sp *shard.Space) uint64 {
	t.Helper()
	sum, err := sp.Digest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// loader returns what loads dumps into the space.
func loader(sp *shard.Space) *dump.Loader {
	return dump.NewLoader(func(*dump.Header) (*shard.Space, error) { return sp, nil }, nil)
}

// load loads the rest of a dump.
func load(t *testing.T, text []byte, l *dump.Loader) {
	t.Helper()
	err := l.Read(t.Context(), bytes.NewReader(text))
	if err == nil {
		err = l.Commit(t.Context())
	}
	if err != nil {
		t.Fatalf("loading: %v", err)
	}
}

// everywhere says of each rank that its events are read to where they are.
func everywhere(set *shard.Set) At {
	return func(_ context.Context, sp event.Space, queue func() error, wait func()) (p dump.Position, err error) {
		for _, r := range set.Lookup(sp).Ranks() {
			p.Positions = append(p.Positions, dump.Publisher{Worker: r.Worker, DPRank: r.DPRank})
		}
		if err = queue(); err == nil {
			wait()
		}
		return p, err
	}
}

// TestDumpIsTheOracles dumps histories: what is loaded has the oracle's digest
// and gives its answers, also in two parts, and compressed.
func TestDumpIsTheOracles(t *testing.T) {
	for _, g := range coretest.Generators() {
		for _, seed := range coretest.Seeds(1) {
			set, sp := newSpace(t, 3)
			s := serveDeps(t, testConfig(t), Deps{Index: Shards{set}, At: everywhere(set)})
			o := core.NewOracle()
			prompts := coretest.NewPrompts(rand.New(rand.NewPCG(seed, 1)))
			ops := g.History(seed)
			for _, op := range ops[:min(len(ops), 120)] {
				if op.Event.Kind == 0 { // Forget is no event
					continue
				}
				b := event.Batch{Space: event.Space{Model: "m", BlockSize: 16}, Worker: identify(op.Holder).Worker, CountCopies: op.Count, Events: []event.Event{op.Event}}
				b.Events[0].DPRank = identify(op.Holder).DPRank
				if _, err := sp.ApplyWait(t.Context(), &b); err != nil {
					t.Fatal(err)
				}
				op.Apply(o)
				prompts.Note(&op)
			}
			want := o.Digest(shard.SpaceHash(event.Space{Model: "m", BlockSize: 16}), func(h core.Holder) (uint64, uint32) {
				return identify(h).Worker, identify(h).DPRank
			})
			if g.Name != coretest.Generators()[0].Name {
				for range 5 { // one history is enough to compare with the document
					s.sampled("GET" + dumpPath)
				}
			}
			_, text := s.do(t, "GET", dumpPath, "")
			other, loaded := newSpace(t, 2)
			l := loader(loaded)
			load(t, text, l)
			if got := digest(t, loaded); got != want {
				t.Fatalf("%s, seed %d: digest %x, the oracle's %x", g.Name, seed, got, want)
			}
			answers := serve(t, Shards{other}, testConfig(t))
			for range 3 {
				compareAnswer(t, answers, o, prompts.Next(o))
			}

			resp, packed := s.do(t, "GET", dumpPath, "", "Accept-Encoding", "gzip, zstd;q=0.5")
			z, err := zstd.NewReader(nil)
			if err != nil {
				t.Fatal(err)
			}
			unpacked, err := z.DecodeAll(packed, nil)
			if z.Close(); resp.Header.Get("Content-Encoding") != "zstd" || err != nil || !bytes.Equal(unpacked, text) {
				t.Errorf("%s, seed %d: %v, %d bytes compressed: %v", g.Name, seed, resp.Header, len(packed), err)
			}

			whole := len(l.Ranks())
			if whole < 2 {
				continue
			}
			mark := []byte(`"cursor":"` + l.Ranks()[whole/2].Cursor + `"}}` + "\n")
			at := bytes.Index(text, mark) + len(mark)
			_, parts := newSpace(t, 1)
			l = loader(parts)
			if err := l.Read(t.Context(), bytes.NewReader(text[:at+(len(text)-at)/2])); !errors.Is(err, dump.ErrTruncated) {
				t.Fatalf("half a dump: %v", err)
			}
			first := len(l.Ranks())
			_, rest := s.do(t, "GET", dumpPath+"&cursor="+l.Cursor(), "")
			load(t, rest, l)
			if got := digest(t, parts); got != want || len(l.Ranks()) != whole || first == 0 {
				t.Errorf("%s, seed %d: in two parts, the first of %d ranks: digest %x and %d ranks, want %x and %d", g.Name, seed, first, got, len(l.Ranks()), want, whole)
			}
		}
	}
}

// TestDumpBesideWrites dumps while events are applied. With those after each
// rank's position, the loaded space is the dumped one.
func TestDumpBesideWrites(t *testing.T) {
	set, sp := newSpace(t, 3)
	var mu sync.Mutex // held while a batch is given to the space
	var log []event.Batch
	last := make(map[shard.RankID]uint64)
	rng := rand.New(rand.NewPCG(3, 4))
	write := func() {
		mu.Lock()
		defer mu.Unlock()
		id := rank(rng.Uint64N(6), rng.Uint32N(2))
		last[id]++
		ev := event.Event{Kind: event.Stored, DPRank: id.DPRank, ID: last[id], Tier: event.Tier(rng.IntN(2))}
		hash := uint64(0)
		for range 1 + rng.IntN(6) {
			local := 1 + rng.Uint64N(3)
			hash = hash*4 + local
			ev.Engine, ev.Local = append(ev.Engine, hash), append(ev.Local, local)
		}
		if id.Worker%2 == 0 && rng.IntN(3) == 0 { // of a worker with cache groups
			ev.Group, ev.Local = uint8(1+rng.IntN(2)), nil
		}
		if rng.IntN(3) == 0 {
			ev.Kind, ev.Local = event.Removed, nil
		}
		b := event.Batch{Space: event.Space{Model: "m", BlockSize: 16}, Worker: id.Worker, Events: []event.Event{ev}}
		log = append(log, b)
		if _, err := sp.ApplyWait(context.Background(), &b); err != nil {
			t.Error(err)
		}
	}
	for range 200 {
		write()
	}
	at := func(_ context.Context, _ event.Space, queue func() error, wait func()) (p dump.Position, err error) {
		mu.Lock()
		for id, n := range last {
			p.Positions = append(p.Positions, dump.Publisher{Worker: id.Worker, DPRank: id.DPRank, LastID: n})
		}
		err = queue()
		mu.Unlock()
		if err == nil {
			wait()
		}
		for range 20 { // whatever comes between two ranks
			write()
		}
		return p, err
	}
	s := serveDeps(t, testConfig(t), Deps{Index: Shards{set}, At: at})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; n < 1000; n++ {
			select {
			case <-stop:
				return
			default:
				write()
			}
		}
	}()
	_, text := s.do(t, "GET", dumpPath, "")
	close(stop)
	<-stopped
	_, other := newSpace(t, 2)
	l := loader(other)
	load(t, text, l)
	if len(l.Ranks()) < 10 {
		t.Fatalf("%d ranks", len(l.Ranks()))
	}
	has := make(map[shard.RankID]uint64)
	for _, p := range l.Header().Positions {
		has[rank(p.Worker, p.DPRank)] = p.LastID
	}
	later := false
	for _, r := range l.Ranks() {
		later = later || r.Position.LastID > has[r.ID()]
		has[r.ID()] = r.Position.LastID
	}
	if !later {
		t.Error("no rank changed while the dump was made")
	}
	for _, b := range log {
		if b.Events[0].ID <= has[rank(b.Worker, b.Events[0].DPRank)] {
			continue
		}
		if _, err := other.ApplyWait(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := digest(t, other), digest(t, sp); got != want {
		t.Errorf("digest %x after the events that follow, the source's is %x", got, want)
	}
}

func TestDumpRefusals(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t))
	for path, want := range map[string]string{
		"/v1/dump": edge.Missing, "/v1/dump?model=none": edge.UnknownModel, dumpPath + "&group=none": edge.UnknownGroup,
		dumpPath + "&block_size=7": edge.BlockSize, dumpPath + "&block_size=x": edge.OutOfRange,
		dumpPath + "&cursor=1.2.3": edge.OutOfRange, dumpPath + "&x=1": edge.UnknownArgument,
	} {
		if strings.Contains(path, "cursor") {
			sp := s.deps.Index.Spaces()[0]
			path += fmt.Sprintf("&group=%s&block_size=%d", sp.Group, sp.BlockSize)
		}
		if resp, data := s.do(t, "GET", path, ""); resp.StatusCode < 400 || !strings.Contains(string(data), `"`+want+`"`) {
			t.Errorf("%s: %d %s, want %s", path, resp.StatusCode, data, want)
		}
	}
}

// TestDumpClientLeaves: a client that leaves ends its dump, which makes room
// for another one.
func TestDumpClientLeaves(t *testing.T) {
	ix := new(fakeIndex)
	chain := make([]uint64, 1<<14)
	for i := range chain {
		chain[i] = uint64(i) + 1<<60
	}
	var ranks []fakeRank
	for i := range 100 { // more than sockets keep: 65 MB
		ranks = append(ranks, fakeRank{RankID: rank(uint64(i), 0), chain: chain})
	}
	ix.add(event.Space{Model: "m", BlockSize: 16}, ranks...)
	s := serve(t, ix, testConfig(t))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+dumpPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if a, data := s.do(t, "GET", dumpPath, ""); a.StatusCode != 503 || a.Header.Get("Retry-After") == "" {
		t.Errorf("a second dump: %d %.200s", a.StatusCode, data)
	}
	cancel()
	for deadline := time.Now().Add(time.Minute); s.dumps.running.Load() != 0; {
		if time.Now().After(deadline) {
			t.Fatal("the dump goes on without its client")
		}
		<-time.After(time.Millisecond)
	}
	if n := s.counter(`kvatlas_dumps_total{result="client_left"}`); n != "1" {
		t.Errorf("client_left %s", n)
	}
	if a, _ := s.do(t, "HEAD", dumpPath, ""); a.StatusCode != 200 || s.dumps.running.Load() != 0 {
		t.Errorf("HEAD: %d, %d dumps under way", a.StatusCode, s.dumps.running.Load())
	}
}
