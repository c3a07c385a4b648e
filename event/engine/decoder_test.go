package engine

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
)

type (
	m    = mptest.Map
	list = []any
)

// batch is a payload of events, without a rank.
func batch(events ...any) []byte { return mptest.Encode(list{1.0, events}) }

const second = 1_000_000_000

// storeMap is a stored event of vLLM's, with more fields at its end.
func storeMap(parent any, hashes []uint64, tokens []uint32, more ...any) m {
	return append(m{"type", "BlockStored", "block_hashes", hashes, "parent_block_hash", parent, "token_ids", tokens, "block_size", 4}, more...)
}

func storedEvent(parent any, l []uint64, engine ...uint64) event.Event {
	ev := event.Event{Kind: event.Stored, Engine: engine, Local: l}
	if p, ok := parent.(int); ok {
		ev.HasParent, ev.Parent = true, uint64(p)
	}
	return ev
}

var (
	t1 = []uint32{1, 2, 3, 4}
	t2 = []uint32{5, 6, 7, 8}
	t3 = []uint32{9, 10, 11, 12}
)

func TestShapesOfABatch(t *testing.T) {
	ev := list{"BlockRemoved", list{5}}
	want := event.Event{Kind: event.Removed, Engine: []uint64{5}}
	ranked := want
	ranked.DPRank = 3
	for name, c := range map[string]struct {
		payload any
		at      int64
		want    event.Event
	}{
		"two elements":      {list{1.5, list{ev}}, 15 * second / 10, want},
		"three elements":    {list{1.0, list{ev}, 3}, second, ranked},
		"nil rank":          {list{1.0, list{ev}, nil}, second, want},
		"five elements":     {list{1.0, list{ev}, 3, "epoch", m{"x", list{1}}}, second, ranked},
		"milliseconds":      {list{uint64(1700000000250), list{ev}}, published, want},
		"no time":           {list{nil, list{ev}}, 0, want},
		"a map, rank first": {m{"x", 1, "data_parallel_rank", 3, "events", list{ev}, "ts", 1.0}, second, ranked},
		"a map, SGLang's":   {m{"events", list{ev}, "attn_dp_rank", 3}, 0, ranked},
		"a negative time":   {list{-1.0, list{ev}}, 0, want},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, newDecoder(t, Config{BlockSize: 4}), mptest.Encode(c.payload), c.at, c.want)
		})
	}
	want.DPRank = 7
	check(t, newDecoder(t, Config{BlockSize: 4, Rank: 7}), mptest.Encode(list{1.0, list{ev}}), second, want)
}

func TestPayloadsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		payload string
		want    error
	}{
		"nothing":         {"", event.ErrTruncated},
		"an array bomb":   {"\xdd\xff\xff\xff\xff", event.ErrTruncated},
		"an event bomb":   {"\x92\x01\xdd\xff\xff\xff\xff", event.ErrTruncated},
		"no events":       {"\x91\x01", event.ErrMalformed},
		"a number":        {"\x01", event.ErrMalformed},
		"events a string": {"\x92\x01\xa1x", event.ErrMalformed},
		"something after": {"\x92\x01\x90\x01", event.ErrMalformed},
		"a negative rank": {"\x93\x01\x90\xff", event.ErrMalformed},
	} {
		d := newDecoder(t, Config{BlockSize: 4})
		if got, err := d.Decode([]byte(c.payload)); !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := NewDecoder(Config{BlockSize: 1025}); !errors.Is(err, blockhash.ErrBlockSize) {
		t.Errorf("block size 1025: %v", err)
	}
}

func TestOneUnusableEventDoesNotCostTheOthers(t *testing.T) {
	d := newDecoder(t, Config{BlockSize: 4})
	got := storedEvent(nil, local(t, 0, t1...), 1)
	check(t, d, batch(
		list{"BlockStored", []uint64{1}, nil, t1, 4, nil},                                                   // an array among maps
		m{"novel", 1, "type", "BlockStored", "block_hashes", []uint64{1}, "token_ids", t1, "block_size", 4}, // an unknown key before the tag
		m{"type", "BlockInactive", "block_hashes", []uint64{9}},
		list{"BlockInactive", 1, 2, 3},
		m{"block_hashes", []uint64{9}},                                                                // no tag at all
		list{},                                                                                        // nothing
		m{"type", "BlockStored", "block_hashes", "nine", "token_ids", t1},                             // of a wrong type
		m{"type", "BlockStored", "block_hashes", list{7, "nine"}, "token_ids", list{1, -1}},           // within
		storeMap(nil, []uint64{7}, []uint32{1, 2, 3}),                                                 // not a whole block
		m{"type", "BlockRemoved"},                                                                     // no hashes
		"a string",                                                                                    // no event
		m{"type", "BlockStored", "block_hashes", list{}, "token_ids", list{}, "block_size", 4},        // empty
		list{"BlockRemoved", []uint64{3}, "CPU", nil, "new"},                                          // an unknown position
		list{"BlockStored", []uint64{1}, nil, t1, 4, nil, "GPU", nil, nil, 0, "full_attention", 8, 8}, // one more number
		m{"type", "AllBlocksCleared"},
	), second, got, got, event.Event{Kind: event.Removed, Tier: event.HostPinned, Engine: []uint64{3}}, got, event.Event{Kind: event.Cleared, AllTiers: true})
	if want := (Stats{UnknownField: 2, UnknownEvent: 4, Malformed: 5}); d.Stats() != want {
		t.Errorf("left out %v, want %v", d.Stats(), want)
	}
	// All of those that are malformed but one, of whose blocks the content is not known.
	if d.batch.Lost != 4 {
		t.Errorf("%d events are lost, want 4", d.batch.Lost)
	}
	if b, err := d.Decode(batch(m{"type", "AllBlocksCleared"})); err != nil || b.Lost != 0 {
		t.Errorf("the next batch: %+v, %v", b, err)
	}
}

func TestHashesOfEveryForm(t *testing.T) {
	digest := slices.Repeat([]byte{0xab}, 32)
	copy(digest[24:], "\x00\x00\x00\x00\x00\x00\x00\x05")
	check(t, newDecoder(t, Config{BlockSize: 4}), batch(list{"BlockRemoved", list{5, -5, uint64(1 << 63), digest, digest[16:], mptest.Raw{0xff}, mptest.Raw{0xcc, 0xff}}}), second,
		event.Event{Kind: event.Removed, Engine: []uint64{5, 1<<64 - 5, 1 << 63, 5, 5, 1<<64 - 1, 255}})
}

func TestStoresByHashAlone(t *testing.T) {
	disk := event.Event{Kind: event.Stored, Tier: event.Disk, HasParent: true, Parent: 1, Engine: []uint64{2, 3}}
	d := newDecoder(t, Config{BlockSize: 4})
	check(t, d, batch(
		m{"type", "BlockStored", "block_hashes", list{2, 3}, "parent_block_hash", 1, "token_ids", list{}, "block_size", 256, "medium", "STORAGE"},
		m{"event_type", "stored", "seq_hashes", list{2, 3}, "parent_hash", 1, "token_ids", nil, "block_size", nil, "medium", "disk"}, // Mooncake without its compatible fields
		m{"event_type", "removed", "seq_hashes", list{2}, "medium", "disk"},
		m{"event_type", "cleared"},
	), second, disk, disk, event.Event{Kind: event.Removed, Tier: event.Disk, Engine: []uint64{2}}, event.Event{Kind: event.Cleared, AllTiers: true})
	if d.Stats() != (Stats{}) {
		t.Errorf("left out %v", d.Stats())
	}
}

func TestSaltAndLoraAreInherited(t *testing.T) {
	seed := blockhash.Seed("sql", "tenant")
	for name, root := range map[string]m{
		"vLLM":          storeMap(nil, []uint64{1, 2}, append(slices.Clone(t1), t2...), "lora_name", "sql", "extra_keys", list{list{"sql", "tenant"}, list{"sql"}}),
		"vLLM, tagged":  storeMap(nil, []uint64{1, 2}, append(slices.Clone(t1), t2...), "extra_keys", list{list{list{"lora", "sql", "/path"}, list{"cache_salt", "tenant"}}, nil}),
		"SGLang":        storeMap(nil, []uint64{1, 2}, append(slices.Clone(t1), t2...), "lora_name", "sql", "cache_salt", "tenant"),
		"keys in front": append(m{"extra_keys", list{list{"sql", "tenant"}}, "lora_name", "sql"}, storeMap(nil, []uint64{1, 2}, append(slices.Clone(t1), t2...))...),
	} {
		t.Run(name, func(t *testing.T) {
			d := newDecoder(t, Config{BlockSize: 4})
			check(t, d, batch(root, storeMap(2, []uint64{3}, t3)), second,
				storedEvent(nil, local(t, seed, 1, 2, 3, 4, 5, 6, 7, 8), 1, 2), storedEvent(2, local(t, seed, t3...), 3))
			// A grandchild, in a later payload; a block of another chain; and
			// one whose hash now names plain content, and its child.
			check(t, d, batch(storeMap(3, []uint64{4}, t1), storeMap(9, []uint64{10}, t1), storeMap(nil, []uint64{3}, t1), storeMap(3, []uint64{11}, t2)), second,
				storedEvent(3, local(t, seed, t1...), 4), storedEvent(9, local(t, 0, t1...), 10),
				storedEvent(nil, local(t, 0, t1...), 3), storedEvent(3, local(t, 0, t2...), 11))
			if d.Stats() != (Stats{}) {
				t.Errorf("left out %v", d.Stats())
			}
		})
	}
}

// An adapter that is given by its number alone (vLLM 0.13) is another content than the
// plain model's: it is that of its name, if somebody knows it, else left out with all that
// hangs on it, and counted.
func TestLorasByNumber(t *testing.T) {
	array := func(parent any, hash uint64, tokens []uint32, lora any) list {
		return list{"BlockStored", []uint64{hash}, parent, tokens, mptest.Raw{4}, lora, "GPU"} // 0.13's layout
	}
	seed := func(name string) uint64 { return blockhash.Seed(name, "") }
	for _, byMap := range []bool{false, true} {
		payload := func(parent any, hash uint64, tokens []uint32, lora any) []byte {
			if byMap {
				return batch(storeMap(parent, []uint64{hash}, tokens, "lora_id", lora))
			}
			return batch(array(parent, hash, tokens, lora))
		}
		d := newDecoder(t, Config{BlockSize: 4, Loras: map[int64]string{2: "sql", 3: "chat"}})
		check(t, d, payload(nil, 1, t1, nil), 1e9, storedEvent(nil, local(t, seed(""), t1...), 1))
		check(t, d, payload(nil, 2, t1, mptest.Raw{2}), 1e9, storedEvent(nil, local(t, seed("sql"), t1...), 2))
		check(t, d, payload(2, 3, t2, mptest.Raw{2}), 1e9, storedEvent(2, local(t, seed("sql"), t2...), 3))
		check(t, d, payload(nil, 4, t1, mptest.Raw{3}), 1e9, storedEvent(nil, local(t, seed("chat"), t1...), 4))
		if n := d.Stats()[UnnamedLora]; n != 0 {
			t.Errorf("%d blocks of named adapters are left out", n)
		}
		check(t, d, payload(nil, 5, t1, mptest.Raw{7}), 1e9)
		check(t, d, payload(5, 6, t2, mptest.Raw{7}), 1e9)
		check(t, d, payload(nil, 7, t1, "b7e2"), 1e9)
		if n := d.Stats()[UnnamedLora]; n != 3 {
			t.Errorf("%d blocks of adapters without a name are left out, want 3", n)
		}
		check(t, d, payload(nil, 8, t3, nil), 1e9, storedEvent(nil, local(t, seed(""), t3...), 8))
		// One name for all that name none, as HTTP clients register.
		d = newDecoder(t, Config{BlockSize: 4, Lora: "all"})
		check(t, d, payload(nil, 1, t1, mptest.Raw{7}), 1e9, storedEvent(nil, local(t, seed("all"), t1...), 1))
	}
}

func TestChainsAreBounded(t *testing.T) {
	const limit = 100
	d := newDecoder(t, Config{BlockSize: 4, MaxChains: limit})
	seed := blockhash.Seed("", "tenant")
	for h := range uint64(10 * limit) {
		if _, err := d.Decode(batch(storeMap(nil, []uint64{h}, t1, "cache_salt", "tenant"))); err != nil {
			t.Fatal(err)
		}
		if n := len(d.chains.now) + len(d.chains.old); n > 2*limit {
			t.Fatalf("%d chains kept", n)
		}
		// The first block stays, being in use, and so does a recent one. (Each
		// round uses at most three blocks.)
		for _, parent := range []uint64{0, max(h, limit/4) - limit/4} {
			check(t, d, batch(storeMap(int(parent), []uint64{1 << 40}, t2)), second, storedEvent(int(parent), local(t, seed, t2...), 1<<40))
		}
	}
	plain := newDecoder(t, Config{BlockSize: 4})
	for h := range uint64(10) {
		if _, err := plain.Decode(batch(storeMap(int(h), []uint64{h + 1}, t1))); err != nil {
			t.Fatal(err)
		}
	}
	if !plain.chains.empty() {
		t.Error("chains of plain blocks are kept")
	}
}

func TestMultimodalIdentifiers(t *testing.T) {
	digest := "00000000000000ff" + strings.Repeat("0", 48)
	withMM := func(mm ...uint64) []uint64 {
		return []uint64{blockhash.LocalHash(t1, 0, nil), blockhash.LocalHash(t2, 0, mm)}
	}
	both := append(slices.Clone(t1), t2...)
	for name, c := range map[string]struct {
		more m
		want []uint64
	}{
		"a pair":              {m{"extra_keys", list{nil, list{list{digest, 2}}}}, withMM(255)},
		"a pair, not nested":  {m{"extra_keys", list{nil, list{digest, 2}}}, withMM(255)},
		"alone":               {m{"extra_keys", list{nil, list{digest}}}, withMM(255)},
		"another identifier":  {m{"extra_keys", list{nil, list{list{"cat.png", 0}}}}, withMM(blockhash.MultimodalHash([]byte("cat.png")))},
		"two":                 {m{"extra_keys", list{nil, list{list{"cat.png", 0}, list{digest, 3}}}}, withMM(255, blockhash.MultimodalHash([]byte("cat.png")))},
		"Dynamo's":            {m{"block_mm_infos", list{nil, m{"mm_objects", list{m{"mm_hash", uint64(255), "offsets", list{list{0, 3}}}}}}}, withMM(255)},
		"fewer entries":       {m{"extra_keys", list{nil}}, withMM()},
		"an entry of no keys": {m{"extra_keys", list{list{}, list{}}}, withMM()},
		"extra_keys of nil":   {m{"extra_keys", nil, "block_mm_infos", nil}, withMM()},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, newDecoder(t, Config{BlockSize: 4}), batch(storeMap(nil, []uint64{1, 2}, both, c.more...)), second, storedEvent(nil, c.want, 1, 2))
		})
	}
	check(t, newDecoder(t, Config{BlockSize: 4}), batch(list{"BlockStored", []uint64{1, 2}, nil, both, 4, nil, "GPU", nil, list{nil, list{list{digest, 1}}}, 0}), second, storedEvent(nil, withMM(255), 1, 2))
}

func TestBlocksWithUnknownKeysAndTheirChildrenAreLeftOut(t *testing.T) {
	both := append(slices.Clone(t1), t2...)
	for name, keys := range map[string]any{
		"embeddings":      list{nil, list{make([]byte, 32)}},
		"a second string": list{nil, list{"salt?"}},
		"a number":        list{nil, list{1}},
		"an odd tuple":    list{nil, list{list{"x", 1, 2}}},
		"an odd tag":      list{nil, list{list{"tag", "x"}}},
		"not a list":      list{nil, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDecoder(t, Config{BlockSize: 4})
			check(t, d, batch(storeMap(nil, []uint64{1, 2}, both, "extra_keys", keys), storeMap(2, []uint64{3}, t3), storeMap(1, []uint64{4}, t3)), second,
				storedEvent(nil, local(t, 0, t1...), 1), storedEvent(1, local(t, 0, t3...), 4))
			if want := (Stats{ExtraKeys: 1, ParentLeft: 1}); d.Stats() != want {
				t.Errorf("left out %v, want %v", d.Stats(), want)
			}
		})
	}
	d := newDecoder(t, Config{BlockSize: 4})
	check(t, d, batch(storeMap(nil, []uint64{1}, t1, "extra_keys", "x")), second)
	if want := (Stats{ExtraKeys: 1}); d.Stats() != want {
		t.Errorf("left out %v, want %v", d.Stats(), want)
	}
}

func TestLookaheadAndEagle(t *testing.T) {
	both := append(slices.Clone(t1), t2...)
	nine := append(slices.Clone(both), 9)
	eagle, err := blockhash.LocalHashes(nil, nine, 4, blockhash.Options{Eagle: true})
	if err != nil {
		t.Fatal(err)
	}
	one := storedEvent(nil, local(t, 0, t1...), 1)
	for name, c := range map[string]struct {
		eagle bool
		ev    m
		want  []event.Event
		left  Stats
	}{
		"beyond block 1":         {false, storeMap(nil, []uint64{1, 2}, both, "lookahead_token_ids", list{nil, list{9}}), []event.Event{one}, Stats{Lookahead: 1}},
		"none beyond":            {false, storeMap(nil, []uint64{1}, t1, "lookahead_token_ids", list{list{}}), []event.Event{one}, Stats{}},
		"a number beyond":        {false, storeMap(nil, []uint64{1}, t1, "lookahead_token_ids", list{9}), nil, Stats{Lookahead: 1}},
		"pairs":                  {false, storeMap(nil, []uint64{1, 2}, nil, "token_ids", pairs(nine)), []event.Event{storedEvent(nil, eagle, 1, 2)}, Stats{}},
		"pairs, Eagle set":       {true, storeMap(nil, []uint64{1, 2}, nil, "token_ids", pairs(nine)), []event.Event{storedEvent(nil, eagle, 1, 2)}, Stats{}},
		"pairs of half a block":  {false, storeMap(nil, []uint64{1, 2}, nil, "token_ids", pairs(nine[:7])), nil, Stats{Malformed: 1}},
		"pairs with a break":     {false, storeMap(nil, []uint64{1}, nil, "token_ids", list{list{1, 2}, list{2, 3}, list{4, 5}, list{5, 6}}), nil, Stats{Malformed: 1}},
		"a pair of three":        {false, storeMap(nil, []uint64{1}, nil, "token_ids", list{list{1, 2}, list{2, 3}, list{3, 4, 5}, list{4, 5}}), nil, Stats{Malformed: 1}},
		"Eagle, one token more":  {true, storeMap(nil, []uint64{1, 2}, nine), []event.Event{storedEvent(nil, eagle, 1, 2)}, Stats{}},
		"Eagle by the event":     {false, storeMap(nil, []uint64{1, 2}, nine, "is_eagle", true), []event.Event{storedEvent(nil, eagle, 1, 2)}, Stats{}},
		"Eagle by lookahead":     {true, storeMap(nil, []uint64{1, 2}, both, "lookahead_token_ids", list{list{5}, list{9}}), []event.Event{storedEvent(nil, eagle, 1, 2)}, Stats{}},
		"Eagle, last is unknown": {true, storeMap(nil, []uint64{1, 2}, both), []event.Event{storedEvent(nil, eagle[:1], 1)}, Stats{Lookahead: 1}},
		"Eagle, two beyond":      {true, storeMap(nil, []uint64{1, 2}, both, "lookahead_token_ids", list{list{5}, list{9, 10}}), []event.Event{storedEvent(nil, eagle[:1], 1)}, Stats{Lookahead: 1}},
		"one token more":         {false, storeMap(nil, []uint64{1, 2}, nine), nil, Stats{Malformed: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDecoder(t, Config{BlockSize: 4, Eagle: c.eagle})
			check(t, d, batch(c.ev), second, c.want...)
			if d.Stats() != c.left {
				t.Errorf("left out %v, want %v", d.Stats(), c.left)
			}
		})
	}
}

// pairs is how SGLang sends the tokens of blocks with EAGLE: each with the one after it.
func pairs(tokens []uint32) (l list) {
	for i := range tokens[1:] {
		l = append(l, list{tokens[i], tokens[i+1]})
	}
	return l
}

// A model that has more than full attention is one of which depths are the most that can
// be reused, by vLLM's cache groups and by SGLang's components.
func TestHybridModelsSaySo(t *testing.T) {
	stored := []event.Event{storedEvent(nil, local(t, 0, t1...), 1)}
	full := event.CacheGroup{Kind: "full_attention", BlockSize: 4}
	untold := event.CacheGroup{Number: event.MaxCacheGroups - 1, Kind: event.Untold}
	window := event.CacheGroup{Number: 2, Kind: "sliding_window", BlockSize: 4, Span: 8}
	for name, c := range map[string]struct {
		ev     m
		want   []event.Event
		hybrid bool
		groups []event.CacheGroup
	}{
		"one group":            {storeMap(nil, []uint64{1}, t1, "group_idx", 0, "kv_cache_spec_kind", "full_attention"), stored, false, nil},
		"a window":             {storeMap(nil, []uint64{1}, t1, "group_idx", 1, "kv_cache_spec_kind", "sliding_window", "kv_cache_spec_sliding_window", 8), []event.Event{{Kind: event.Stored, Group: 2, Engine: []uint64{1}}}, true, []event.CacheGroup{full, window}},
		"a window in an array": {nil, []event.Event{{Kind: event.Stored, Group: 2, Engine: []uint64{1}}}, true, []event.CacheGroup{full, window}},
		"of another group":     {m{"type", "BlockRemoved", "block_hashes", list{1}, "group_idx", 1}, []event.Event{{Kind: event.Removed, Group: 2, Engine: []uint64{1}}}, true, []event.CacheGroup{full}},
		"two of full attention": {storeMap(nil, []uint64{1}, t1, "group_idx", 1, "kv_cache_spec_kind", "mla_attention"), []event.Event{{Kind: event.Stored, Group: 2, Engine: []uint64{1}}}, true,
			[]event.CacheGroup{full, {Number: 2, Kind: "mla_attention", BlockSize: 4}}},
		"a window that keeps nothing": {storeMap(nil, nil, t1, "group_idx", 1, "kv_cache_spec_kind", "sliding_window", "kv_cache_spec_sliding_window", 8), nil, true, []event.CacheGroup{full, window}},
		"an unknown kind":             {storeMap(nil, []uint64{1}, t1, "group_idx", 1), []event.Event{{Kind: event.Stored, Group: 2, Engine: []uint64{1}}}, true, []event.CacheGroup{full}},
		"what nobody can reuse":       {storeMap(nil, []uint64{1}, t1, "group_idx", 1, "kv_cache_spec_kind", "cross_attention"), nil, false, nil},
		"too many groups":             {storeMap(nil, []uint64{1}, t1, "group_idx", 15, "kv_cache_spec_kind", "mamba"), nil, true, []event.CacheGroup{full, untold}},
		"a group of what":             {storeMap(nil, []uint64{1}, t1, "kv_cache_spec_kind", "mamba"), nil, true, []event.CacheGroup{full, untold}},
		"a group that was another":    {storeMap(nil, []uint64{1}, t1, "group_idx", 0, "kv_cache_spec_kind", "mamba"), []event.Event{{Kind: event.Stored, Group: 1, Engine: []uint64{1}}}, true, []event.CacheGroup{full, untold, {Number: 1, Kind: "mamba", BlockSize: 4}}},
		"a part of a block": {m{"type", "BlockStored", "block_hashes", list{1}, "parent_block_hash", nil, "token_ids", []uint32{1, 2}, "block_size", 2, "group_idx", 0, "kv_cache_spec_kind", "full_attention"},
			nil, false, nil},
		"full attention":        {storeMap(nil, []uint64{1}, t1, "component_types", list{"FULL"}), stored, false, nil},
		"no component":          {storeMap(nil, []uint64{1}, t1, "component_types", list{}), stored, false, nil},
		"and a window":          {storeMap(nil, []uint64{1}, t1, "component_types", list{"SWA", "FULL"}), stored, true, []event.CacheGroup{full, untold}},
		"a window that is back": {storeMap(nil, []uint64{1}, t1, "component_types", list{"SWA"}), nil, true, []event.CacheGroup{full, untold}},
		"odd components":        {storeMap(nil, []uint64{1}, t1, "component_types", list{7}), stored, false, nil},
	} {
		d := newDecoder(t, Config{BlockSize: 4})
		if _, err := d.Decode(batch(storeMap(nil, []uint64{2}, t2, "group_idx", 0, "kv_cache_spec_kind", "full_attention"))); err != nil {
			t.Fatal(err)
		}
		payload := batch(c.ev)
		if c.ev == nil {
			payload = batch(list{"BlockStored", list{1}, nil, t1, 4, nil, "GPU", nil, nil, 1, "sliding_window", 8})
		}
		b, err := d.Decode(payload)
		if err != nil || b.Hybrid != c.hybrid || !slices.Equal(b.Groups, c.groups) || len(b.Events) != len(c.want) || len(c.want) > 0 && !reflect.DeepEqual(b.Events, c.want) {
			t.Errorf("%s: %+v, %v", name, b, err)
		}
		if b, err = d.Decode(batch()); err != nil || b.Hybrid != c.hybrid {
			t.Errorf("%s: then it is not known: %v, %v", name, b.Hybrid, err)
		}
	}
}

func TestPairsSayThatTheyAreEagle(t *testing.T) {
	d := newDecoder(t, Config{BlockSize: 4})
	for _, c := range []struct {
		ev   m
		want bool
	}{
		{storeMap(nil, []uint64{1}, t1), false},
		{storeMap(nil, []uint64{1}, nil, "token_ids", pairs([]uint32{1, 2, 3, 4, 5})), true},
		{m{"type", "BlockRemoved", "block_hashes", list{1}}, false},
	} {
		if b, err := d.Decode(batch(c.ev)); err != nil || b.Eagle != c.want {
			t.Errorf("%v: Eagle is %v, %v", c.ev, b.Eagle, err)
		}
	}
}

func TestWhatIsNotIndexedIsCounted(t *testing.T) {
	d := newDecoder(t, Config{BlockSize: 4})
	full := storedEvent(nil, local(t, 0, t1...), 1)
	check(t, d, batch(
		m{"type", "BlockStored", "block_hashes", list{5, 6}, "token_ids", []uint32{1, 2, 3, 4}, "block_size", 2},
		storeMap(nil, []uint64{5}, t1, "locality", "REMOTE"),
		m{"type", "BlockRemoved", "block_hashes", list{5}, "locality", "REMOTE"},
		storeMap(nil, []uint64{1}, t1, "locality", "LOCAL"),
		storeMap(nil, []uint64{5}, t1, "medium", "TAPE"),
	), second, full)
	if want := (Stats{BlockSize: 2, Remote: 2, Medium: 1}); d.Stats() != want {
		t.Errorf("left out %v, want %v", d.Stats(), want)
	}
	got, err := d.Decode(batch(m{"type", "BlockRemoved", "block_hashes", list{5, 6, 7}, "medium", "TAPE"}))
	if err != nil || got.Filtered != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}

// What is elsewhere is a pool's where the worker's registration names one.
func TestRemoteBlocksAreAPools(t *testing.T) {
	d := newDecoder(t, Config{BlockSize: 4, Remote: true})
	far := storedEvent(nil, local(t, 0, t1...), 5)
	far.Tier = event.External
	gone := event.Event{Kind: event.Removed, Tier: event.External, Engine: []uint64{5}}
	check(t, d, batch(
		storeMap(nil, []uint64{5}, t1, "locality", "REMOTE"),
		m{"type", "BlockRemoved", "block_hashes", list{5}, "locality", "REMOTE"},
	), second, far, gone)
	if d.Stats() != (Stats{}) {
		t.Errorf("left out %v", d.Stats())
	}
}

func TestOnlyTheMainCacheGroup(t *testing.T) {
	d := newDecoder(t, Config{BlockSize: 4})
	one := storedEvent(nil, local(t, 0, t1...), 1)
	gone := event.Event{Kind: event.Removed, Engine: []uint64{1}}
	other := func(kind event.Kind, group uint8) event.Event {
		return event.Event{Kind: kind, Group: group, Engine: []uint64{1}}
	}
	// A removal's group is known by the store before it.
	check(t, d, batch(
		storeMap(nil, []uint64{1}, t1, "group_idx", 0, "kv_cache_spec_kind", "sliding_window"),
		storeMap(nil, []uint64{1}, t1, "group_idx", 1, "kv_cache_spec_kind", "full_attention"),
		storeMap(nil, []uint64{1}, t1, "group_idx", 2, "kv_cache_spec_kind", "mla_attention"),
		storeMap(nil, []uint64{1}, t1, "group_idx", 3, "kv_cache_spec_kind", "mamba"),
		storeMap(nil, []uint64{1}, t1, "kv_cache_spec_kind", "sink_full_attention"),
		storeMap(nil, []uint64{1}, t1, "kv_cache_spec_kind", "chunked_local_attention"),
		storeMap(nil, []uint64{1}, t1, "group_idx", 1000),
	), second, other(event.Stored, 1), one, other(event.Stored, 3), other(event.Stored, 4), one)
	check(t, d, batch(
		list{"BlockRemoved", list{1}, "GPU", 0}, list{"BlockRemoved", list{1}, "GPU", 1}, m{"type", "BlockRemoved", "block_hashes", list{1}, "group_idx", 2},
		list{"BlockRemoved", list{1}, "GPU", 3}, list{"BlockRemoved", list{1}, "GPU", nil}, list{"BlockRemoved", list{1}, "GPU", 9},
	), second, other(event.Removed, 1), gone, other(event.Removed, 3), other(event.Removed, 4), gone, other(event.Removed, 10))
	if want := (Stats{OtherGroup: 2}); d.Stats() != want {
		t.Errorf("left out %v, want %v", d.Stats(), want)
	}
}

// bigPayload is a batch of 8 stores of 64 blocks of 16 tokens, as vLLM writes
// it: maps, tokens in the smallest width.
func bigPayload(arrays bool) []byte {
	var events list
	for e := range 8 {
		var hashes []uint64
		var tokens mptest.Raw = []byte{0xdc, 0x04, 0x00}
		for i := range 64 {
			hashes = append(hashes, uint64(e*64+i+1)*0x9e3779b97f4a7c15)
		}
		for i := range uint32(1024) {
			switch v := (i + uint32(e)*1024) * 2654435761 % 128256; {
			case v < 128:
				tokens = append(tokens, byte(v))
			case v < 256:
				tokens = append(tokens, 0xcc, byte(v))
			case v < 65536:
				tokens = append(tokens, 0xcd, byte(v>>8), byte(v))
			default:
				tokens = append(tokens, 0xce, 0, byte(v>>16), byte(v>>8), byte(v))
			}
		}
		keys := make(list, 64)
		if arrays {
			events = append(events, list{"BlockStored", hashes, uint64(e), tokens, mptest.Raw{16}, nil, "GPU", nil, keys, mptest.Raw{0}, "full_attention", nil})
			continue
		}
		events = append(events, m{"type", "BlockStored", "block_hashes", hashes, "parent_block_hash", uint64(e), "token_ids", tokens, "block_size", mptest.Raw{16},
			"lora_id", nil, "medium", "GPU", "lora_name", nil, "extra_keys", keys, "group_idx", mptest.Raw{0}, "kv_cache_spec_kind", "full_attention"})
	}
	return mptest.Encode(list{1700000000.25, events, mptest.Raw{0}})
}

func TestDecodingDoesNotAllocate(t *testing.T) {
	salted := batch(storeMap(nil, []uint64{1, 2}, append(slices.Clone(t1), t2...), "lora_name", "sql", "extra_keys", list{list{"sql", "tenant", list{"cat.png", 1}}, list{"sql"}}), storeMap(2, []uint64{3}, t3))
	for name, c := range map[string]struct {
		size    int
		payload []byte
	}{"maps": {16, bigPayload(false)}, "arrays": {16, bigPayload(true)}, "salted": {4, salted}} {
		d := newDecoder(t, Config{BlockSize: c.size})
		if n := testing.AllocsPerRun(100, func() {
			if _, err := d.Decode(c.payload); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		if d.Stats() != (Stats{}) {
			t.Errorf("%s: left out %v", name, d.Stats())
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for name, payload := range map[string][]byte{"vllm-map": bigPayload(false), "vllm-array": bigPayload(true)} {
		b.Run(name, func(b *testing.B) {
			d := newDecoder(b, Config{BlockSize: 16})
			b.ReportAllocs()
			b.SetBytes(int64(len(payload)))
			blocks := 0
			for b.Loop() {
				got, err := d.Decode(payload)
				if err != nil {
					b.Fatal(err)
				}
				blocks += got.Blocks()
			}
			b.ReportMetric(float64(blocks)/b.Elapsed().Seconds(), "blocks/s")
		})
	}
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range Reason(NumReasons) {
		if seen[r.String()] || r.String() == "unknown" {
			t.Errorf("reason %d is called %q", r, r)
		}
		seen[r.String()] = true
	}
	if Reason(NumReasons).String() != "unknown" {
		t.Error("a reason without a number")
	}
}

// TestNoEngineIsAPool: the rank that pools have in an index is no engine's.
func TestNoEngineIsAPool(t *testing.T) {
	for rank, want := range map[uint32]error{event.PoolRank: event.ErrMalformed, event.PoolRank - 1: nil} {
		d, err := NewDecoder(Config{BlockSize: 4})
		if err != nil {
			t.Fatal(err)
		}
		if b, err := d.Decode(mptest.Encode(list{1.5, list{}, uint64(rank)})); !errors.Is(err, want) {
			t.Errorf("rank %d: %+v, %v", rank, b, err)
		}
	}
}
