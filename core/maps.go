package core

// A thinMap is a map that gives memory back: Go's maps keep what they once
// needed. It remembers its largest size, which its memory follows, and is made
// anew when three quarters of that are gone. The zero value is empty.
type thinMap[V any] struct {
	m    map[uint64]V
	peak int
}

func (t *thinMap[V]) set(k uint64, v V) {
	if t.m == nil {
		t.m = make(map[uint64]V)
	}
	t.m[k] = v
	t.peak = max(t.peak, len(t.m))
}

func (t *thinMap[V]) drop(k uint64) {
	delete(t.m, k)
	switch n := len(t.m); {
	case n == 0:
		*t = thinMap[V]{}
	case t.peak > 32 && n < t.peak/4:
		m := make(map[uint64]V, n)
		for k, v := range t.m {
			m[k] = v
		}
		t.m, t.peak = m, n
	}
}

// bytes returns the map's memory; entry is the size of a key and a value.
func (t *thinMap[V]) bytes(entry int64) int64 {
	if t.peak == 0 {
		return 0
	}
	// Groups of eight slots and eight control bytes. Beyond one group a table
	// is at most seven eighths full; it doubles up to 1,024 slots, and then becomes
	// two.
	slots := int64(8)
	for t.peak > 8 && slots*7 < int64(t.peak)*8 {
		slots *= 2
	}
	tables := max(slots/mapTable, 1)
	n := 48 + tables*sizeClass(slots/tables*(entry+1))
	if t.peak > 8 {
		n += tables * 40 // a table and its place in their directory
	}
	return n
}

// A keyedMap is a thinMap in parts, so that none of them takes long to make
// anew.
type keyedMap[V any] struct {
	parts *[mapParts]thinMap[V]
	n     int
	size  int64 // sum of the parts' bytes
	entry int64 // size of a key and a value
	key   hasher
}

const (
	mapTable     = 1024 // slots of a table of Go's maps
	mapParts     = 64
	mapPartBytes = 16
)

// part returns the part of the key, which it shares with those that differ in the low eight bits only: 256
// neighbouring holders of one run are asked for one after the other, and so found in the cache.
func (k *keyedMap[V]) part(key uint64) *thinMap[V] { return &k.parts[k.key.mix(key>>8)>>58] }

// get returns the value, the zero value if there is none.
func (k *keyedMap[V]) get(key uint64) (v V, ok bool) {
	if k.n == 0 {
		return v, false
	}
	v, ok = k.part(key).m[key]
	return v, ok
}

func (k *keyedMap[V]) set(key uint64, v V) {
	if k.parts == nil {
		k.parts = new([mapParts]thinMap[V])
	}
	t := k.part(key)
	n, peak := len(t.m), t.peak
	was := int64(0)
	if n == peak {
		was = t.bytes(k.entry)
	}
	t.set(key, v)
	k.n += len(t.m) - n
	if t.peak != peak {
		k.size += t.bytes(k.entry) - was
	}
}

func (k *keyedMap[V]) drop(key uint64) {
	if k.n == 0 {
		return
	}
	t := k.part(key)
	n, peak, was := len(t.m), t.peak, t.bytes(k.entry)
	t.drop(key)
	if k.n += len(t.m) - n; k.n == 0 {
		*k = keyedMap[V]{entry: k.entry, key: k.key}
		return
	}
	if t.peak != peak {
		k.size += t.bytes(k.entry) - was
	}
}

func (k *keyedMap[V]) bytes() int64 {
	if k.parts == nil {
		return 0
	}
	return mapParts*mapPartBytes + k.size
}
