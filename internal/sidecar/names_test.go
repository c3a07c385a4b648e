package sidecar

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/internal/recovery"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
)

// knower is the holder of a replica's oracle that has every prompt.
const knower core.Holder = 9

// replica is the oracle of a reader of one worker's stream. With others, it
// has a worker of the same hash scheme that knows every prompt.
type replica struct {
	*core.Oracle
	others bool
}

func newReplica(prompts [][]uint64, others bool) *replica {
	r := &replica{core.NewOracle(), others}
	for _, p := range prompts {
		if others {
			r.Store(knower, &event.Event{Kind: event.Stored, Engine: blockhash.SequenceHashes(nil, p), Local: p}, false)
		}
	}
	return r
}

func (r *replica) apply(ev *event.Event) {
	switch {
	case ev.Kind == event.Stored && len(ev.Local) == 0:
		core.StoreNames(r, holder, ev, false, func(int) (core.Holder, bool) { return knower, r.others })
	case ev.Kind == event.Stored:
		r.Store(holder, ev, false)
	case ev.Kind == event.Removed:
		r.Remove(holder, ev, false)
	default:
		r.Clear(holder, ev.Tier, ev.AllTiers)
	}
}

// held returns what the worker holds. (What it knows beside that may differ:
// publishers do not know what is below the blocks that they cannot place.)
func (r *replica) held() []core.Name {
	return slices.DeleteFunc(r.Names(holder), func(n core.Name) bool { return n.Copies == [event.NumTiers]uint32{} })
}

// publishing is a sidecar's set and the publisher behind it.
type publishing struct {
	t      *testing.T
	set    *set
	source *recovery.Source
	names  int
	last   uint64
	now    time.Time
	live   []*replica
}

// open begins the publisher, with what the set has.
func (p *publishing) open() {
	p.source = recovery.NewSource(recovery.Config{
		Space: event.Space{Model: "m", BlockSize: 4}, Worker: 1, Incarnation: 1, Ring: 10, RingBytes: 1 << 20, Names: p.names,
		Now: func() time.Time { return p.now }, Resume: []event.Position{{ID: p.last}},
		Holds: func(_ uint32, add func(*event.Event, []uint32)) { p.set.dump(add) },
	})
}

// publish is what a publish.Publisher does with an event.
func (p *publishing) publish(ev event.Event) error {
	p.last++
	ev.ID = p.last
	for _, r := range p.live {
		r.apply(&ev)
	}
	for _, again := range p.source.Apply(ev).Again {
		_ = p.publish(again)
	}
	return nil
}

// late returns a replica that takes a dump.
func (p *publishing) late(prompts [][]uint64, others bool) *replica {
	p.t.Helper()
	p.now = p.now.Add(time.Hour) // a new dump
	r := newReplica(prompts, others)
	answer, kind := p.source.Answer(recovery.AppendRequest(nil, recovery.Request{}), 1<<26)
	reply, err := recovery.DecodeReply(answer)
	if err != nil || kind != recovery.Dump || reply.Parts != 1 {
		p.t.Fatalf("%v, %v: %+v", kind, err, reply)
	}
	restore := core.Restorer{Index: r, Holder: holder}
	var loose []event.Event
	var frames recovery.Frames
	err = frames.Add(reply.Body, func(b *event.Batch, copies [][]uint32) error {
		for i := range b.Events {
			ev := b.Events[i]
			ev.Engine, ev.Local = slices.Clone(ev.Engine), slices.Clone(ev.Local)
			if ev.Incomplete {
				loose = append(loose, ev)
			} else {
				restore.Add(&ev, copies[i])
			}
		}
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
	restore.Finish()
	for i := range loose {
		r.apply(&loose[i])
	}
	return r
}

// An engine that offloads blocks by their hashes alone, some of which it never
// told the content of: a replica that takes a dump shows what one shows that
// heard all of it, whether another worker knows those blocks or none does, over
// restarts of the sidecar, and with more names than there is room for.
func TestReplicasAgreeOnNamesOfUnknownContent(t *testing.T) {
	agreed, leftOut := 0, 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 51))
		var prompts [][]uint64
		for range 6 {
			var c []uint64
			for range 1 + rng.IntN(6) {
				c = append(c, rng.Uint64N(3))
			}
			prompts = append(prompts, c)
		}
		p := &publishing{t: t, names: 1 + rng.IntN(20), now: time.Unix(0, 0)}
		p.set = newSet(p.names)
		p.live = []*replica{newReplica(prompts, true), newReplica(prompts, false)}
		p.open()
		name := func() uint64 {
			c := prompts[rng.IntN(len(prompts))]
			q := blockhash.SequenceHashes(nil, c)
			return q[rng.IntN(len(q))]
		}
		for range 120 {
			ev := event.Event{Kind: event.Stored, Tier: event.Tier(rng.IntN(3))}
			switch k := rng.IntN(30); {
			case k == 0:
				ev.Kind, ev.AllTiers = event.Cleared, rng.IntN(2) == 0
			case k < 8:
				ev.Kind, ev.Engine = event.Removed, []uint64{name(), name(), name()}
			case k < 18:
				for range 1 + rng.IntN(4) {
					ev.Engine = append(ev.Engine, name())
				}
			default:
				c := prompts[rng.IntN(len(prompts))]
				n := 1 + rng.IntN(len(c))
				ev.Engine, ev.Local = blockhash.SequenceHashes(nil, c[:n]), c[:n]
			}
			if _, err := p.set.apply(rawEvent{&ev, seed%2 == 0, false}, p.publish); err != nil {
				t.Fatal(err)
			}
			if rng.IntN(10) == 0 { // the sidecar starts again
				leftOut += p.set.leftOut
				st, err := decodeState(appendState(nil, &state{set: p.set}), p.names)
				if err != nil {
					t.Fatal(err)
				}
				p.set = st.set
				p.open()
			}
			if rng.IntN(8) > 0 {
				continue
			}
			for i, others := range []bool{true, false} {
				late := p.late(prompts, others)
				if have, want := late.held(), p.live[i].held(); !reflect.DeepEqual(have, want) {
					t.Fatalf("seed %d, others know the prompts: %v:\n  late  %v\n  early %v", seed, others, have, want)
				}
			}
			agreed += p.set.loose.Names()
		}
	}
	t.Logf("%d names of unknown content in dumps, %d left out", agreed, leftOut)
	if agreed == 0 || leftOut == 0 {
		t.Error("the histories do not reach everything")
	}
}

// What vLLM says of an offload medium: names without tokens. Those whose content
// the engine never told are passed on once, and so is their removal.
func TestOffloadedNamesOfVLLM(t *testing.T) {
	type m = mptest.Map
	stored := func(medium string, parent any, hashes []uint64, tokens []uint32) m {
		return m{"type", "BlockStored", "block_hashes", hashes, "parent_block_hash", parent, "token_ids", tokens,
			"block_size", 4, "lora_id", nil, "medium", medium, "lora_name", nil}
	}
	removed := func(medium string, hashes []uint64) m {
		return m{"type", "BlockRemoved", "block_hashes", hashes, "medium", medium}
	}
	d, err := engine.NewDecoder(engine.Config{BlockSize: 4})
	if err != nil {
		t.Fatal(err)
	}
	said := func(s *set, events ...any) (out []event.Event, sum core.Outcome) {
		t.Helper()
		b, err := d.Decode(mptest.Encode([]any{1.0, events, 0}))
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Events {
			did, err := s.apply(rawEvent{&b.Events[i], b.CountCopies, false}, func(ev event.Event) error {
				ev.Engine, ev.Local = slices.Clone(ev.Engine), slices.Clone(ev.Local)
				out = append(out, ev)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			sum.Add(did)
		}
		return out, sum
	}
	names := func(evs []event.Event) (list [][]uint64) {
		for _, ev := range evs {
			if ev.Tier != event.HostPinned || len(ev.Local) > 0 {
				t.Errorf("%+v", ev)
			}
			list = append(list, ev.Engine)
		}
		return list
	}
	s := newSet(3)
	if out, _ := said(s, stored("GPU", nil, []uint64{10, 11}, []uint32{1, 2, 3, 4, 5, 6, 7, 8})); len(out) != 1 || len(out[0].Local) != 2 {
		t.Fatalf("%+v", out)
	}
	out, sum := said(s, stored("CPU", nil, []uint64{11, 20, 21, 20}, nil), stored("CPU", nil, []uint64{20, 22, 23}, nil))
	if got, want := names(out), [][]uint64{{11, 20, 21}, {22}}; !reflect.DeepEqual(got, want) || sum.UnknownBlock != 6 || s.leftOut != 1 {
		t.Errorf("passed on %v, want %v; %+v, %d left out", got, want, sum, s.leftOut)
	}
	// One of three copies, one of a name that was left out, one that is there once.
	out, _ = said(s, removed("CPU", []uint64{20, 23, 21}))
	if got, want := names(out), [][]uint64{{21}}; !reflect.DeepEqual(got, want) {
		t.Errorf("removed %v, want %v", got, want)
	}
	if out, _ = said(s, removed("CPU", []uint64{20, 20})); !reflect.DeepEqual(names(out), [][]uint64{{20}}) {
		t.Errorf("removed %+v", out)
	}
	if none := newSet(0); true {
		out, sum := said(none, stored("CPU", nil, []uint64{20}, nil), removed("CPU", []uint64{20}))
		if len(out) > 0 || sum.UnknownBlock != 1 || none.leftOut != 0 {
			t.Errorf("where nobody can know them: %+v, %+v, %d left out", out, sum, none.leftOut)
		}
	}
}
