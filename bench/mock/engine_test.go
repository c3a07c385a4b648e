package mock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// observer keeps the set of blocks that events imply, and fails the test when
// an event makes no sense to a set: a block stored twice, an unknown parent or
// name, a removal of what is not there or of what still has children.
type observer struct {
	t       *testing.T
	held    map[uint64]uint64 // on the device: engine hash → parent, 0 for none
	content map[uint64]uint64 // engine hash → sequence hash
	parent  map[uint64]uint64 // of every block ever
	kids    map[uint64]int
	lower   [event.NumTiers]map[uint64]bool // on other tiers
	log     []event.Event
}

func newObserver(t *testing.T) *observer {
	o := &observer{t: t, held: map[uint64]uint64{}, content: map[uint64]uint64{}, parent: map[uint64]uint64{}, kids: map[uint64]int{}}
	for i := range o.lower {
		o.lower[i] = map[uint64]bool{}
	}
	return o
}

// has reports whether the block is on any tier.
func (o *observer) has(e uint64) bool {
	_, ok := o.held[e]
	for _, m := range o.lower {
		ok = ok || m[e]
	}
	return ok
}

// below takes in an event of a tier below the device.
func (o *observer) below(ev *event.Event) {
	o.t.Helper()
	if len(ev.Local) > 0 || ev.HasParent || len(ev.Engine) == 0 {
		o.t.Fatalf("an event of tier %v that does not go by names: %+v", ev.Tier, ev)
	}
	for _, e := range ev.Engine {
		switch m := o.lower[ev.Tier]; ev.Kind {
		case event.Stored:
			if m[e] || !o.has(e) {
				o.t.Fatalf("%x is stored on tier %v: there before %v, known %v", e, ev.Tier, m[e], o.has(e))
			}
			m[e] = true
		default:
			if !m[e] {
				o.t.Fatalf("%x is removed from tier %v but not held", e, ev.Tier)
			}
			delete(m, e)
		}
	}
}

func (o *observer) apply(ev *event.Event) {
	o.t.Helper()
	c := *ev
	c.Engine, c.Local = slices.Clone(ev.Engine), slices.Clone(ev.Local)
	o.log = append(o.log, c)
	if ev.Tier != event.Device {
		o.below(ev)
		return
	}
	switch ev.Kind {
	case event.Stored:
		parent, seq := uint64(0), uint64(0)
		if ev.HasParent {
			parent = ev.Parent
			if _, ok := o.held[parent]; !ok {
				o.t.Fatalf("stored after %x, which is not held", parent)
			}
			seq = o.content[parent]
		}
		if len(ev.Local) != len(ev.Engine) || len(ev.Engine) == 0 {
			o.t.Fatalf("stored %d engine hashes and %d local ones", len(ev.Engine), len(ev.Local))
		}
		for i, e := range ev.Engine {
			if _, ok := o.held[e]; ok {
				o.t.Fatalf("%x is stored twice", e)
			}
			if i == 0 && !ev.HasParent {
				seq = ev.Local[i]
			} else {
				seq = blockhash.NextSequenceHash(seq, ev.Local[i])
			}
			if was, ok := o.content[e]; ok && was != seq {
				o.t.Fatalf("%x names two contents", e)
			}
			o.held[e], o.content[e], o.parent[e] = parent, seq, parent
			o.kids[parent]++
			parent = e
		}
	case event.Removed:
		for _, e := range ev.Engine {
			parent, ok := o.held[e]
			if !ok {
				o.t.Fatalf("%x is removed but not held", e)
			}
			if o.kids[e] > 0 {
				o.t.Fatalf("%x is removed before its children", e)
			}
			delete(o.held, e)
			o.kids[parent]--
		}
	case event.Cleared:
		clear(o.held)
		clear(o.kids)
		for _, m := range o.lower {
			if len(m) > 0 && !ev.AllTiers {
				o.t.Fatal("a clear leaves lower tiers")
			}
			clear(m)
		}
	}
}

// check compares the implied set with the cache, and the cache with its rules.
func (o *observer) check(e *Engine) {
	o.t.Helper()
	held := e.AppendHeld(nil)
	if len(held) != len(o.held) || e.Held() != len(held) {
		o.t.Fatalf("the cache holds %d blocks, its events imply %d", len(held), len(o.held))
	}
	for _, h := range held {
		if _, ok := o.held[h]; !ok {
			o.t.Fatalf("%x is cached without an event", h)
		}
	}
	if len(held) > e.cfg.Blocks {
		o.t.Fatalf("%d blocks in a cache of %d", len(held), e.cfg.Blocks)
	}
	for tier, size := range map[event.Tier]int{event.HostPinned: e.cfg.HostBlocks, event.Disk: e.cfg.DiskBlocks} {
		held := e.AppendHeldOn(nil, tier)
		if len(held) != len(o.lower[tier]) || e.HeldOn(tier) != len(held) || len(held) > size {
			o.t.Fatalf("tier %v of %d holds %d blocks, its events imply %d", tier, size, len(held), len(o.lower[tier]))
		}
		for _, h := range held {
			if p := o.parent[h]; !o.lower[tier][h] || p != 0 && !o.has(p) {
				o.t.Fatalf("%x on tier %v: by events %v, after a block that is there %v", h, tier, o.lower[tier][h], o.has(p))
			}
		}
	}
	refs, used := map[int32]int32{}, 0
	for _, s := range e.running {
		if s.blocks != (s.computed+e.cfg.BlockSize-1)/e.cfg.BlockSize || s.named != min(len(s.name), s.computed/e.cfg.BlockSize) {
			o.t.Fatalf("%d blocks, %d of them named, for %d tokens", s.blocks, s.named, s.computed)
		}
		used += s.blocks - s.named
		named := s.named
		for r := s.last; r != 0; r = e.cache.runs[r].parent {
			of := &e.cache.runs[r]
			if refs[r]++; refs[r] == 1 {
				used += len(of.names)
			}
			if named -= len(of.names); named < 0 || !slices.Equal(of.names, s.name[named:named+len(of.names)]) {
				o.t.Fatal("blocks of a running request have lost their content")
			}
		}
		if named != 0 {
			o.t.Fatalf("%d named blocks of a running request are lost", named)
		}
	}
	runs, kids := 0, map[int32]int32{}
	for i := range e.cache.runs[1:] {
		r := int32(i) + 1
		of := &e.cache.runs[r]
		if of.refs != refs[r] {
			o.t.Fatal("the uses of runs are miscounted")
		}
		if len(of.names) > 0 {
			runs++
			kids[of.parent]++
			if at, ok := e.cache.byFirst.get(of.names[0]); !ok || at != r {
				o.t.Fatal("a run is not found by its first name")
			}
		}
	}
	for i := range e.cache.runs[1:] {
		if r := int32(i) + 1; e.cache.runs[r].kids != kids[r] {
			o.t.Fatal("the runs after a run are miscounted")
		}
	}
	if runs != e.cache.byFirst.used {
		o.t.Fatalf("%d runs, %d are found", runs, e.cache.byFirst.used)
	}
	free := e.cache.blank
	for r := e.cache.runs[0].next; r != 0; r = e.cache.runs[r].next {
		if refs[r] != 0 {
			o.t.Fatal("a used block may be evicted")
		}
		free += len(e.cache.runs[r].names)
	}
	if free != e.cache.free || free+used != e.cfg.Blocks {
		o.t.Fatalf("%d blocks are used and %d free, %d counted, of %d", used, free, e.cache.free, e.cfg.Blocks)
	}
}

// history is a random run on a small engine: prompts that share prefixes, some
// far beyond the token budget, in a cache that is always too small.
func history(t *testing.T, seed uint64, cfg Config, requests int, each func(*Engine, *observer)) (*Engine, *observer, totals) {
	t.Helper()
	o := newObserver(t)
	e, err := New(cfg, o.apply)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	h := trace.NewHasher(4, e.cfg.BlockSize)
	var sum totals
	for id := 0; id < requests || !e.Idle(); {
		if id < requests && rng.IntN(3) > 0 {
			r := randomRequest(rng, h, uint64(id), e.cfg.BlockSize*e.cfg.Blocks)
			if err := e.Admit(r); err == nil {
				sum.admitted++
				sum.tokens += r.Input + max(r.Output-1, 0)
			} else if !errors.Is(err, ErrTooLarge) {
				t.Fatal(err)
			} else {
				sum.refused++
			}
			id++
		} else {
			sum.add(e.Step())
			if each != nil {
				each(e, o)
			}
		}
		if e.Idle() && rng.IntN(20) == 0 {
			if err := e.Clear(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return e, o, sum
}

type totals struct {
	admitted, refused, tokens                       int
	computed, reused, lost, first, ended, preempted int
	loaded                                          [event.NumTiers]int
}

func (s *totals) add(r *Report) {
	s.computed += r.Prefill + r.Decode
	s.reused += r.Reused
	s.lost += r.Lost
	s.first += len(r.First)
	s.ended += len(r.Finished)
	s.preempted += len(r.Preempted)
	for t, n := range r.Loaded {
		s.loaded[t] += n
	}
}

func randomRequest(rng *rand.Rand, h *trace.Hasher, id uint64, capacity int) *Request {
	q := trace.Request{Serial: id, Output: rng.IntN(30)}
	q.Input = 1 + rng.IntN(capacity/2)
	if rng.IntN(8) == 0 {
		q.Input += rng.IntN(capacity)
	}
	family, fork := rng.Uint64N(3), rng.IntN(q.Input)
	for i := range (q.Input + 3) / 4 {
		id := family<<20 | uint64(i)
		if i > fork {
			id |= (rng.Uint64N(4) + 1) << 40
			fork = q.Input
			family |= id >> 20
		}
		q.IDs = append(q.IDs, id)
	}
	return &Request{ID: id, Input: q.Input, Output: q.Output, Local: h.Output(h.Prompt(nil, &q), &q)}
}

func smallConfigs() []Config {
	return []Config{
		{BlockSize: 4, Blocks: 40, MaxRunning: 6, MaxBatched: 32},
		{BlockSize: 1, Blocks: 60, MaxRunning: 3, MaxBatched: 7, HashSeed: 5},
		{BlockSize: 5, Blocks: 200, MaxRunning: 20, MaxBatched: 1000},
		{BlockSize: 4, Blocks: 1, MaxRunning: 4, MaxBatched: 2},
		{BlockSize: 16, Blocks: 30, MaxRunning: 50, MaxBatched: 1},
		{BlockSize: 4, Blocks: 40, MaxRunning: 6, MaxBatched: 32, HostBlocks: 60},
		{BlockSize: 4, Blocks: 40, MaxRunning: 6, MaxBatched: 32, HostBlocks: 3, DiskBlocks: 80},
		{BlockSize: 5, Blocks: 100, MaxRunning: 20, MaxBatched: 1000, DiskBlocks: 1},
	}
}

// The blocks that the events imply are those of the cache at all times, used
// blocks stay, and tokens are conserved: each is computed once, or found.
func TestEventsAreTheCache(t *testing.T) {
	seen := totals{}
	for i, cfg := range smallConfigs() {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%d-%d", i, seed), func(t *testing.T) {
				_, _, sum := history(t, seed, cfg, 150, func(e *Engine, o *observer) { o.check(e) })
				if sum.tokens != sum.computed+sum.reused-sum.lost {
					t.Errorf("%d tokens, but %d computed + %d reused - %d lost", sum.tokens, sum.computed, sum.reused, sum.lost)
				}
				if sum.ended != sum.admitted || sum.first != sum.admitted {
					t.Errorf("%d admitted, %d first tokens, %d ended", sum.admitted, sum.first, sum.ended)
				}
				seen.reused += sum.reused
				seen.preempted += sum.preempted
				seen.refused += sum.refused
				for tier, n := range sum.loaded {
					seen.loaded[tier] += n
				}
			})
		}
	}
	if seen.reused == 0 || seen.preempted == 0 || seen.refused == 0 || seen.loaded[event.HostPinned] == 0 || seen.loaded[event.Disk] == 0 {
		t.Errorf("the histories reach too little: %+v", seen)
	}
}

func TestSameCallsSameEvents(t *testing.T) {
	for _, cfg := range smallConfigs() {
		_, a, _ := history(t, 7, cfg, 100, nil)
		_, b, _ := history(t, 7, cfg, 100, nil)
		if fmt.Sprint(a.log) != fmt.Sprint(b.log) {
			t.Fatal("two runs of one history differ")
		}
	}
}

// The oracle holds what the engine holds, and finds a prompt as deep as the
// engine would reuse it.
func TestOracleAgrees(t *testing.T) {
	e, o, _ := history(t, 3, smallConfigs()[2], 200, nil)
	oracle := core.NewOracle()
	for i := range o.log {
		switch ev := &o.log[i]; ev.Kind {
		case event.Stored:
			oracle.Store(0, ev, false)
		case event.Removed:
			oracle.Remove(0, ev, false)
		case event.Cleared:
			oracle.Clear(0, ev.Tier, ev.AllTiers)
		}
	}
	if oracle.Held(0, event.Device) != e.Held() {
		t.Fatalf("the oracle holds %d blocks, the engine %d", oracle.Held(0, event.Device), e.Held())
	}
	rng := rand.New(rand.NewPCG(3, 0))
	h := trace.NewHasher(4, e.cfg.BlockSize)
	var m core.Matches
	found := 0
	for id := range uint64(200) {
		r := randomRequest(rng, h, id, e.cfg.BlockSize*e.cfg.Blocks)
		prompt := r.Local[:r.Input/e.cfg.BlockSize]
		want := e.Leading(prompt)
		oracle.Find(prompt, &m)
		depth := make([]uint32, 1)
		m.Fill(event.Device, depth)
		if int(depth[0]) != want {
			t.Fatalf("the oracle finds %d blocks, the engine has %d", depth[0], want)
		}
		found += want
	}
	if found == 0 {
		t.Fatal("no prompt is found at all")
	}
}

// What the device has evicted is loaded from the host instead of computed, stays
// there, and takes the time that a block takes.
func TestLoadsFromHost(t *testing.T) {
	o := newObserver(t)
	e, err := New(Config{BlockSize: 4, Blocks: 6, HostBlocks: 20}, o.apply)
	if err != nil {
		t.Fatal(err)
	}
	run := func(prompt ...uint64) Report {
		t.Helper()
		if err := e.Admit(&Request{Input: 4*len(prompt) + 1, Local: prompt}); err != nil {
			t.Fatal(err)
		}
		r := *e.Step()
		o.check(e)
		return r
	}
	run(1, 2, 3, 4)
	run(11, 12, 13, 14) // leaves one block of the first prompt on the device
	if d, h := e.Held(), e.HeldOn(event.HostPinned); d != 5 || h != 3 {
		t.Fatalf("%d blocks on the device and %d on the host, want 5 and 3", d, h)
	}
	r := run(1, 2, 3, 4)
	if r.Prefill != 1 || r.Reused != 16 || r.Loaded[event.HostPinned] != 3 {
		t.Errorf("%d tokens computed, %d reused, %d blocks loaded, want 1, 16, 3", r.Prefill, r.Reused, r.Loaded[event.HostPinned])
	}
	if h := e.HeldOn(event.HostPinned); h != 6 {
		t.Errorf("%d blocks on the host, want the 3 that were there and 3 of the second prompt", h)
	}
	base := DefaultTiming()
	slow := base
	slow.LoadHost += 5
	if d := slow.Step(&r) - base.Step(&r); d != 15*time.Millisecond {
		t.Errorf("3 blocks at 5 ms more take %v longer", d)
	}
}

func TestHashSeedDecidesAgreement(t *testing.T) {
	hashes := func(seed uint64) []uint64 {
		_, o, _ := history(t, 1, Config{BlockSize: 4, Blocks: 50, HashSeed: seed}, 5, nil)
		return o.log[0].Engine
	}
	if !slices.Equal(hashes(1), hashes(1)) || hashes(1)[0] == hashes(2)[0] {
		t.Fatal("engine hashes do not follow the seed")
	}
}

// An undisturbed request: its prompt is one event for each chunk, its answer
// one for each block; the next turn finds all of it.
func TestShapeOfEvents(t *testing.T) {
	o := newObserver(t)
	e, err := New(Config{BlockSize: 4, Blocks: 100, MaxBatched: 20}, o.apply)
	if err != nil {
		t.Fatal(err)
	}
	h := trace.NewHasher(4, 4)
	run := func(q trace.Request) (reused int) {
		if err := e.Admit(&Request{Input: q.Input, Output: q.Output, Local: h.Output(h.Prompt(nil, &q), &q)}); err != nil {
			t.Fatal(err)
		}
		for !e.Idle() {
			r := e.Step()
			reused += r.Reused
		}
		return reused
	}
	if n := run(trace.Request{Input: 32, Output: 9, IDs: []uint64{0, 1, 2, 3, 4, 5, 6, 7}, OutputIDs: []uint64{8, 9, 10}}); n != 0 {
		t.Errorf("%d tokens reused from an empty cache", n)
	}
	var sizes []int
	for _, ev := range o.log {
		sizes = append(sizes, len(ev.Engine))
	}
	if !slices.Equal(sizes, []int{5, 3, 1, 1}) {
		t.Errorf("events of %v blocks", sizes)
	}
	if n := run(trace.Request{Input: 48, IDs: []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12}}); n != 40 {
		t.Errorf("the next turn reuses %d tokens, want 40", n)
	}
	if n := run(trace.Request{Input: 32, IDs: []uint64{0, 1, 2, 3, 4, 5, 6, 7}}); n != 28 {
		t.Errorf("a prompt that is wholly cached reuses %d tokens, want all but the last block", n)
	}
}

// What nobody can find again is evicted before what somebody may.
func TestPartialBlocksGoFirst(t *testing.T) {
	o := newObserver(t)
	e, err := New(Config{BlockSize: 4, Blocks: 3}, o.apply)
	if err != nil {
		t.Fatal(err)
	}
	for i, tokens := range []int{4, 5, 1} {
		if err := e.Admit(&Request{Input: tokens, Local: []uint64{1, 2}[i%2 : i%2+tokens/4]}); err != nil {
			t.Fatal(err)
		}
		e.Step()
	}
	if e.Held() != 2 || len(o.log) != 2 {
		t.Fatalf("%d blocks held after %d events, want both complete ones", e.Held(), len(o.log))
	}
}

// A request that has to wait for blocks does not keep alive what it would
// reuse: the least recently used block is evicted all the same.
func TestWaitingTouchesNothing(t *testing.T) {
	o := newObserver(t)
	e, err := New(Config{BlockSize: 4, Blocks: 7}, o.apply)
	if err != nil {
		t.Fatal(err)
	}
	admit := func(output int, prompt ...uint64) {
		t.Helper()
		if err := e.Admit(&Request{Input: 4 * len(prompt), Output: output, Local: prompt}); err != nil {
			t.Fatal(err)
		}
	}
	admit(0, 1)
	e.Step()
	admit(0, 2)
	e.Step()
	admit(9, 3, 4, 5, 6) // leaves 3 of 7 blocks, with 1 and 2 in two of them
	e.Step()
	admit(0, 1, 7, 8, 9) // needs those 3 besides the first
	for len(o.log) < 4 {
		if e.Step(); e.Running() != 1 || e.Waiting() != 1 {
			t.Fatalf("%d running, %d waiting before an eviction", e.Running(), e.Waiting())
		}
	}
	if ev := o.log[3]; ev.Kind != event.Removed || !slices.Equal(ev.Engine, o.log[0].Engine) {
		t.Fatalf("the first block stored is not the first one evicted: %+v", ev)
	}
	for !e.Idle() {
		e.Step()
		o.check(e)
	}
}

func TestAdmitRefuses(t *testing.T) {
	e, err := New(Config{BlockSize: 4, Blocks: 4, MaxWaiting: 1}, func(*event.Event) {})
	if err != nil {
		t.Fatal(err)
	}
	f := func(r Request, want error) {
		t.Helper()
		if err := e.Admit(&r); !errors.Is(err, want) {
			t.Fatalf("got %v, want %v", err, want)
		}
	}
	f(Request{Input: 0}, ErrRequest)
	f(Request{Input: 4, Output: -1, Local: []uint64{1}}, ErrRequest)
	f(Request{Input: 7, Local: []uint64{1, 2}}, ErrRequest)
	f(Request{Input: 7, Output: 1, Local: []uint64{1, 2}}, ErrRequest)
	f(Request{Input: 16, Output: 2, Local: []uint64{1, 2, 3, 4}}, ErrTooLarge)
	f(Request{Input: 16, Output: 1, Local: []uint64{1, 2, 3, 4}}, nil)
	f(Request{Input: 1}, ErrBusy)
	e.Step()
	if !e.Idle() || e.Held() != 4 {
		t.Fatalf("idle %v, %d blocks held", e.Idle(), e.Held())
	}
	for _, cfg := range []Config{{Blocks: -1}, {HostBlocks: -1}, {DiskBlocks: 1<<30 + 1}} {
		if _, err := New(cfg, nil); err == nil {
			t.Fatalf("%+v is accepted", cfg)
		}
	}
}
