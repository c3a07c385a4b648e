package engine

import (
	"errors"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
)

// someState is a decoder that remembers a salted chain, a block left out, and
// two cache groups.
func someState(t *testing.T) *Decoder {
	d := newDecoder(t, Config{BlockSize: 4})
	check(t, d, batch(
		storeMap(nil, []uint64{1}, t1, "lora_name", "sql", "cache_salt", "tenant"),
		storeMap(nil, []uint64{2}, t1, "lookahead_token_ids", list{list{9}}),
		storeMap(nil, []uint64{3}, t1, "group_idx", 0, "kv_cache_spec_kind", "mamba"),
		storeMap(nil, []uint64{4}, t1, "group_idx", 1, "kv_cache_spec_kind", "full_attention"),
	), second, storedEvent(nil, local(t, blockhash.Seed("sql", "tenant"), t1...), 1), event.Event{Kind: event.Stored, Group: 1, Engine: []uint64{3}}, storedEvent(nil, local(t, 0, t1...), 4))
	return d
}

func TestStateOutlivesARestart(t *testing.T) {
	before := someState(t)
	after := newDecoder(t, Config{BlockSize: 4})
	if err := after.RestoreState(before.AppendState(nil)); err != nil {
		t.Fatal(err)
	}
	check(t, after, batch(
		storeMap(1, []uint64{11}, t2), storeMap(2, []uint64{12}, t2),
		list{"BlockRemoved", list{4}, "GPU", 0}, list{"BlockRemoved", list{4}, "GPU", 1},
		storeMap(nil, []uint64{5}, t1, "group_idx", 2, "kv_cache_spec_kind", "full_attention"),
	), second, storedEvent(1, local(t, blockhash.Seed("sql", "tenant"), t2...), 11), event.Event{Kind: event.Removed, Group: 1, Engine: []uint64{4}},
		event.Event{Kind: event.Removed, Engine: []uint64{4}}, event.Event{Kind: event.Stored, Group: 3, Engine: []uint64{5}})
	if want := (Stats{ParentLeft: 1}); after.Stats() != want {
		t.Errorf("left out %v, want %v", after.Stats(), want)
	}
	if b, err := after.Decode(batch()); err != nil || !b.Hybrid || len(b.Groups) != 3 || b.Groups[0].Kind != "mamba" {
		t.Errorf("the groups are %+v, %v", b.Groups, err)
	}
}

// A state of before groups were told apart has no more than their kinds.
func TestStateOfVersion1(t *testing.T) {
	old := append([]byte("KVE\x01"), make([]byte, maxGroups+4)...)
	old[4], old[5], old[6] = byte(groupOther), byte(groupMain), byte(groupMain)
	d := newDecoder(t, Config{BlockSize: 4})
	if err := d.RestoreState(old); err != nil {
		t.Fatal(err)
	}
	check(t, d, batch(list{"BlockRemoved", list{4}, "GPU", 1}, list{"BlockRemoved", list{4}, "GPU", 2}), second,
		event.Event{Kind: event.Removed, Engine: []uint64{4}}, event.Event{Kind: event.Removed, Group: 3, Engine: []uint64{4}})
}

func TestRestoringLessRoomKeepsTheBound(t *testing.T) {
	d := newDecoder(t, Config{BlockSize: 4, MaxChains: 100})
	for h := range uint64(150) {
		if _, err := d.Decode(batch(storeMap(nil, []uint64{h}, t1, "cache_salt", "tenant"))); err != nil {
			t.Fatal(err)
		}
	}
	small := newDecoder(t, Config{BlockSize: 4, MaxChains: 10})
	if err := small.RestoreState(d.AppendState(nil)); err != nil {
		t.Fatal(err)
	}
	if n := len(small.chains.now) + len(small.chains.old); n < 10 || n > 20 {
		t.Errorf("%d chains kept", n)
	}
}

func TestUnusableStateIsRefused(t *testing.T) {
	state := someState(t).AppendState(nil)
	d := newDecoder(t, Config{BlockSize: 4})
	for n := range state {
		if err := d.RestoreState(state[:n]); !errors.Is(err, ErrState) {
			t.Errorf("first %d bytes: %v", n, err)
		}
	}
	for name, at := range map[string]int{"magic": 0, "version": 3, "group": 4, "main": 4 + maxGroups, "groups": 4 + maxGroups + 5, "number": len(state) - 2*stateChain - 4, "flag": len(state) - 1} {
		state[at] ^= 0x40
		if err := d.RestoreState(state); !errors.Is(err, ErrState) {
			t.Errorf("another %s: %v", name, err)
		}
		state[at] ^= 0x40
	}
	if !d.chains.empty() {
		t.Error("a refused state changed the decoder")
	}
}
