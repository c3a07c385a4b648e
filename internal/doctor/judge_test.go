package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/registry"
)

// sound is what is found of a worker with which nothing is wrong, of the role.
func sound(id uint64, role registry.Role) Facts {
	w := registry.Worker{
		ID: id, Model: "m", BlockSize: 16, Ranks: []uint32{0, 1}, Role: role, Transport: registry.JetStream, HashScheme: registry.Scheme(16),
		EngineScheme: "s", Endpoints: registry.Endpoints{HTTP: fmt.Sprintf("http://e%d", id), Peer: fmt.Sprintf("e%d:4", id)}, KVTransfer: registry.TransferVLLM, Tiers: []string{"device"},
		Loras: map[int64]string{1: "sql"}, CacheGroups: []event.CacheGroup{{Kind: "full_attention", BlockSize: 16}, {Number: 1, Kind: "sliding_window", BlockSize: 16, Span: 128}},
		Pools: []event.Pool{{Name: "store", Source: &event.PoolSource{Events: "tcp://p:1", Keys: "http://p:2", Parts: 1}}},
		Seen:  []registry.Seen{{DPRank: 0, Batches: true, Tiers: []string{"device"}}, {DPRank: 1, Batches: true, Tiers: []string{"device"}}},
	}
	f := Facts{Worker: w, Engine: &Engine{Models: []string{"m", "sql"}, BlockSize: 16, Ranks: 2, Registered: 2, ClockSaid: true}}
	for r := range uint32(2) {
		f.Ranks = append(f.Ranks, Rank{DPRank: r, Blocks: 4, Heard: 4, Cached: 64, OtherRank: -1})
	}
	f.Ranks[0].First = 77
	if role != registry.Aggregated {
		f.Pair = &Pair{Other: "x", Tokens: 64, Cached: 64}
	}
	return f
}

// judged judges a prefill worker, a decode worker and an aggregated one, of which the
// change is made to the last.
func judged(change func(f *Facts)) []Finding {
	fleet := []Facts{sound(1, registry.Prefill), sound(2, registry.Decode), sound(3, registry.Decode)}
	change(&fleet[2])
	p := NewPool()
	for i := range fleet {
		p.Add(&fleet[i].Worker, fleet[i].Ranks)
		fleet[i].Pool = p
	}
	return Judge(fleet)
}

func TestSoundWorkersHaveNoFindings(t *testing.T) {
	all := judged(func(*Facts) {})
	if len(all) < 3*15 {
		t.Errorf("%d findings", len(all))
	}
	for _, f := range all {
		if f.Level != OK || f.Do != "" || f.Found == "" {
			t.Errorf("%+v", f)
		}
	}
}

// TestEachCheckFinds: one fact is changed, and the check that is meant for it says so, and
// what to do; in the worker that is meant alone.
func TestEachCheckFinds(t *testing.T) {
	covered := map[string]bool{}
	for _, c := range []struct {
		check  string
		level  Level
		found  string
		change func(f *Facts)
	}{
		{"registered", Fault, "lost", func(f *Facts) { f.Absent = "lost" }},
		{"registered", Fault, "two processes", func(f *Facts) { f.Conflict = "two processes" }},
		{"engine", Fault, "refused", func(f *Facts) { f.Engine = &Engine{Error: "refused"} }},
		{"engine", Warning, "no address", func(f *Facts) { f.Worker.Endpoints.HTTP, f.Engine = "", nil }},
		{"model", Fault, `"m"`, func(f *Facts) { f.Engine.Models = []string{"other"} }},
		{"tokens", Fault, "position 3", func(f *Facts) { f.Engine.Tokens = "others from position 3 on" }},
		{"tokens", Unknown, "no files", func(f *Facts) { f.Engine.TokensBy = "no files" }},
		{"lora", Warning, "sql", func(f *Facts) { f.Engine.Models = []string{"m"} }},
		{"hash_scheme", Fault, "never", func(f *Facts) { f.Mismatch = "never" }},
		{"hash_scheme", Unknown, "state", func(f *Facts) { f.Worker.HashScheme = "" }},
		{"block_size", Fault, "32", func(f *Facts) { f.Engine.BlockSize = 32 }},
		{"block_size", Fault, "rank 1 stores blocks of 64", func(f *Facts) { f.Worker.Seen[1].BlockSize = 64 }},
		{"dp_ranks", Fault, "has 4", func(f *Facts) { f.Engine.Ranks = 4 }},
		{"groups", Warning, "cache group 1 is sliding_window of blocks of 16 tokens, span 64", func(f *Facts) { f.Worker.CacheGroups[1].Span = 64 }},
		{"groups", Unknown, "estimates", func(f *Facts) { f.Worker.Hybrid, f.Worker.CacheGroups = true, nil }},
		{"groups", Unknown, "estimates", func(f *Facts) {
			f.Worker.CacheGroups = append(f.Worker.CacheGroups, event.CacheGroup{Number: 2, Kind: event.Untold})
		}},
		{"events", Fault, "the events of rank 1 are those of the engine of pod-7", func(f *Facts) {
			f.Ranks[1].Heard, f.Ranks[1].Others, f.Ranks[1].Of, f.Ranks[1].By = 0, 4, "pod-7", "pod-7"
		}},
		{"events", Fault, "the prompt for rank 1 arrived as that of pod-7", func(f *Facts) { f.Ranks[1].Heard, f.Ranks[1].By = 0, "pod-7" }},
		{"connector", Fault, "its blocks are of 32 tokens, those of prefill workers of its model of 16: it is paired with none", func(f *Facts) { f.Worker.BlockSize, f.Engine.BlockSize = 32, 32 }},
		{"connector", Fault, "its engine is sglang", func(f *Facts) { f.Engine.Kind = "sglang" }},
		{"connector", Unknown, "does not say", func(f *Facts) { f.Worker.KVTransfer = "" }},
		{"hand_over", Fault, "nobody there", func(f *Facts) { f.Pair.Error, f.Pair.Met = "nobody there", false }},
		{"events", Fault, "not read", func(f *Facts) { f.Worker.Seen[1].Error = "refused" }},
		{"events", Fault, "of rank 1 are not published: no room", func(f *Facts) { f.Worker.Seen[1].Waits, f.Ranks[1].Heard = "no room", 0 }},
		{"events", Fault, "nothing arrived", func(f *Facts) { f.Ranks[1].Heard = 0 }},
		{"events", Fault, "by rank 0", func(f *Facts) { f.Ranks[1].Heard, f.Ranks[1].OtherRank = 0, 0 }},
		{"events", Unknown, "cut off", func(f *Facts) { f.Ranks[1].Reading = "cut off" }},
		{"events", Warning, "guessed", func(f *Facts) { f.Worker.Transport, f.Worker.Seen = registry.NoEvents, nil }},
		{"lateness", Warning, "3s", func(f *Facts) { f.Ranks[1].Late = 3 * time.Second }},
		{"matches", Fault, "none with the hashes", func(f *Facts) { f.Ranks[1].Heard, f.Ranks[1].Others = 0, 4 }},
		{"matches", Fault, "salts", func(f *Facts) { f.Ranks[1].Heard, f.Ranks[1].Others, f.Worker.Seen[1].Salted = 0, 4, true }},
		{"matches", Warning, "of 4 blocks of rank 1 2", func(f *Facts) { f.Ranks[1].Heard = 2 }},
		{"left_out", Warning, "unnamed_lora", func(f *Facts) { f.Worker.Seen[0].LeftOut = []string{"other_group", "unnamed_lora"} }},
		{"engine_hashes", Fault, "otherwise", func(f *Facts) { f.Ranks[0].First = 78 }},
		{"replay", Warning, "none", func(f *Facts) { f.Worker.Seen[0].Replay = registry.ReplayNone }},
		{"replay", Fault, "gives no snapshot", func(f *Facts) { f.Worker.Seen[0].Replay = registry.SnapshotUnreachable }},
		{"replay", Fault, "does not answer", func(f *Facts) { f.Worker.Seen[0].Replay = registry.ReplayUnreachable }},
		{"replay", Warning, "reach back", func(f *Facts) { f.Worker.Seen[1].Lost = []string{"retention"} }},
		{"tiers", Warning, "disk", func(f *Facts) { f.Worker.Tiers = []string{"device", "disk"} }},
		{"cached", Fault, "503", func(f *Facts) { f.Ranks[0].Error = "status 503" }},
		{"cached", Warning, "does not say", func(f *Facts) { f.Ranks[0].Cached = -1 }},
		{"cached", Fault, "16 of 64", func(f *Facts) { f.Ranks[0].Cached = 16 }},
		{"cached", Fault, "said that 64 tokens of a prompt that nobody had sent before", func(f *Facts) { f.Ranks[1].Before = 64 }},
		{"pools", Fault, `at tcp://p:1 (events) of pool "store": refused`, func(f *Facts) {
			f.Deaf = map[Place]string{{EventsPlace, "store", "tcp://p:1"}: "refused"}
		}},
		{"pools", Warning, "chunk 256", func(f *Facts) { f.Worker.Pools[0].Chunk = 256 }},
		{"pools", Warning, "prefix other", func(f *Facts) {
			f.Worker.Pools[0].Source = &event.PoolSource{Events: "tcp://p:1", Keys: "http://p:2", Prefix: "other", Parts: 1}
		}},
		{"pools", Warning, `no other worker of its model names pool "stor"`, func(f *Facts) { f.Worker.Pools[0].Name = "stor" }},
		{"peer", Fault, "at e3:5: refused", func(f *Facts) { f.Deaf = map[Place]string{{PeerPlace, "", "e3:5"}: "refused"} }},
		{"peer", Warning, "e2:4, is that of another", func(f *Facts) { f.Worker.Endpoints.Peer = "e2:4" }},
		{"clock", Warning, "-1m0s", func(f *Facts) { f.Engine.Clock = -time.Minute }},
		{"connector", Fault, "as sglang, prefill workers of its model as vllm", func(f *Facts) { f.Worker.KVTransfer = registry.TransferSGLang }},
		{"hand_over", Fault, "of 64 tokens 0", func(f *Facts) { f.Pair.Cached = 0 }},
		{"hand_over", Fault, "refused", func(f *Facts) { f.Pair.Error = "refused" }},
		{"hand_over", Unknown, "not said", func(f *Facts) { f.Pair.Cached = -1 }},
	} {
		covered[c.check] = true
		all := judged(c.change)
		i := slices.IndexFunc(all, func(f Finding) bool { return f.Worker == 3 && f.Check == c.check })
		if i < 0 || all[i].Level != c.level || !strings.Contains(all[i].Found, c.found) || (c.level != Unknown && all[i].Do == "") {
			t.Errorf("%s %s %q: %+v", c.check, c.level, c.found, all)
		}
		for _, f := range all {
			if f.Worker != 3 && f.Level != OK && f.Check != "connector" && f.Check != "peer" { // which is of both
				t.Errorf("%s %q: of another worker: %+v", c.check, c.found, f)
			}
		}
	}
	for _, name := range Names() {
		if !covered[name] {
			t.Errorf("nothing is found by %s", name)
		}
	}
}

// TestOfTwoSeedsBothAreNamed: of equally many nobody knows who is right.
func TestOfTwoSeedsBothAreNamed(t *testing.T) {
	fleet := []Facts{sound(1, registry.Aggregated), sound(2, registry.Aggregated)}
	fleet[1].Ranks[0].First = 78
	p := NewPool()
	for i := range fleet {
		p.Add(&fleet[i].Worker, fleet[i].Ranks)
		fleet[i].Pool = p
	}
	n := 0
	for _, f := range Judge(fleet) {
		if f.Check == "engine_hashes" && f.Level == Fault {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d workers are named", n)
	}
}

// A prefill worker that does not say its way goes by that of routers, which is vLLM's unless they are told.
func TestPrefillWorkersThatDoNotSayTheirWay(t *testing.T) {
	for way, want := range map[registry.KVTransfer]Level{registry.TransferVLLM: Unknown, "": Unknown, registry.TransferMooncake: Warning, registry.TransferSGLang: Warning} {
		fleet := []Facts{sound(1, registry.Prefill), sound(2, registry.Decode)}
		fleet[0].Worker.KVTransfer, fleet[1].Worker.KVTransfer = "", way
		p := NewPool()
		for i := range fleet {
			p.Add(&fleet[i].Worker, nil)
			fleet[i].Pool = p
		}
		for _, f := range Judge(fleet) {
			if f.Worker == 1 && f.Check == "connector" && (f.Level != want || want == Warning && (!strings.Contains(f.Found, string(way)) || f.Do == "")) {
				t.Errorf("%q: %+v", way, f)
			}
		}
	}
}

// Engines of one rank each may have one bootstrap server, and one base of peers' ports: vLLM's behind another balancer.
func TestRanksOfTheirOwnShareAddresses(t *testing.T) {
	for _, c := range []struct {
		ranks [2]uint32
		level Level
	}{{[2]uint32{0, 1}, OK}, {[2]uint32{1, 1}, Warning}} {
		fleet := []Facts{sound(1, registry.Prefill), sound(2, registry.Prefill), sound(3, registry.Decode)}
		p := NewPool()
		for i := range fleet {
			if w := &fleet[i].Worker; i < 2 {
				w.Ranks, w.Endpoints.Bootstrap, w.Endpoints.Peer = c.ranks[i:i+1], "b:1", "p:1"
			}
			p.Add(&fleet[i].Worker, nil)
			fleet[i].Pool = p
		}
		for _, f := range Judge(fleet[:2]) {
			if (f.Check == "connector" || f.Check == "peer") && f.Level != c.level {
				t.Errorf("%v: %+v", c.ranks, f)
			}
		}
	}
}

// TestRegisteredNeedsNoProbe: a registration alone gives what follows from it, and nothing of
// what was not looked at.
func TestRegisteredNeedsNoProbe(t *testing.T) {
	f := sound(1, registry.Aggregated)
	e := registry.Entry{Worker: f.Worker}
	if all := Registered(&e, NewPool()); len(all) != 0 {
		t.Errorf("of a sound worker: %+v", all)
	}
	e.Seen[0].BlockSize, e.Seen[1].Replay, e.Mismatch, e.Endpoints.HTTP = 32, registry.ReplayNone, "never", ""
	var names []string
	for _, f := range Registered(&e, NewPool()) {
		names = append(names, f.Check)
	}
	if !slices.Equal(names, []string{"hash_scheme", "block_size", "replay"}) {
		t.Error(names)
	}
	prefill := sound(2, registry.Prefill)
	p := NewPool()
	p.Add(&prefill.Worker, nil)
	if all := Registered(&registry.Entry{Worker: prefill.Worker}, p); len(all) != 1 || all[0].Check != "connector" {
		t.Errorf("a prefill worker alone: %+v", all)
	}
}

// TestHostileTexts: what engines say gives no commands to the terminal of who reads it, and
// fills a line at most.
func TestHostileTexts(t *testing.T) {
	for _, names := range [][]string{{"a\x1b[2J\x1b]0;title\a\n\u009b31m"}, slices.Repeat([]string{"name"}, 1<<16), {strings.Repeat("ä", 1<<20)}} {
		for _, f := range judged(func(f *Facts) {
			f.Engine.Models, f.Ranks[0].Error, f.Pair.Error = names, names[0], names[0]
			f.Engine.Tokens = names[0]
		}) {
			if strings.ContainsAny(f.Found, "\x1b\a\n\u009b") || len(f.Found) > maxFound+3 {
				t.Errorf("%s: %d bytes, %.100q", f.Check, len(f.Found), f.Found)
			}
		}
	}
}
