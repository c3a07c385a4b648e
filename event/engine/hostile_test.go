package engine

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// What an engine has sent takes no memory for long, however long its names are and however large a
// payload was; and what is remembered of it can be restored.
func TestWhatIsKeptOfHostilePayloads(t *testing.T) {
	const names, long, large = 24, 60_000, 1 << 21
	name := func(i int) string { return fmt.Sprint(i) + strings.Repeat("x", long) }
	for what, payload := range map[string]func(i int) []byte{
		"adapters": func(i int) []byte { return batch(storeMap(nil, []uint64{1}, t1, "lora_name", name(i))) },
		"salts":    func(i int) []byte { return batch(storeMap(nil, []uint64{1}, t1, "cache_salt", name(i))) },
		"salts among keys": func(i int) []byte {
			return batch(storeMap(nil, []uint64{1}, t1, "extra_keys", list{list{name(i)}}))
		},
		"adapters among keys": func(i int) []byte {
			return batch(storeMap(nil, []uint64{1}, t1, "extra_keys", list{list{list{"lora", name(i)}}}))
		},
		"cache groups": func(i int) []byte {
			return batch(storeMap(nil, []uint64{1}, t1, "group_idx", i%14+1, "kv_cache_spec_kind", name(i)))
		},
		"hashes": func(int) []byte {
			return []byte("\x92\x01\x91\x92\xacBlockRemoved\xdd\x00\x20\x00\x00" + strings.Repeat("\x01", large))
		},
		"tokens": func(int) []byte {
			return []byte("\x92\x01\x91\x94\xabBlockStored\x90\xc0\xdd\x00\x20\x00\x00" + strings.Repeat("\x01", large))
		},
		"events": func(int) []byte {
			return []byte("\x92\x01\xdd\x00\x01\x00\x00" + strings.Repeat("\x92\xacBlockRemoved\x91\x01", 1<<16))
		},
	} {
		d := newDecoder(t, Config{BlockSize: 4})
		last := batch(storeMap(nil, []uint64{1}, t1))
		if _, err := d.Decode(last); err != nil {
			t.Fatal(err)
		}
		before := heap()
		for i := range names {
			if _, err := d.Decode(payload(i)); err != nil {
				t.Fatal(what, err)
			}
		}
		if _, err := d.Decode(last); err != nil {
			t.Fatal(err)
		}
		if kept := heap() - before; kept > 1<<20 {
			t.Errorf("%s: %d bytes are kept", what, kept)
		}
		if err := newDecoder(t, Config{BlockSize: 4}).RestoreState(d.AppendState(nil)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
