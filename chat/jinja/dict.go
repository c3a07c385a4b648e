package jinja

// Dict is a dict: keys in the order in which they came.
type Dict struct {
	entries []entry
	index   map[key]int // of the entries, where there are more than fewEntries
}

type entry struct{ key, val Value }

// fewEntries may be looked through one by one; nearly all objects of requests have fewer.
const fewEntries = 12

// NewDict returns an empty dict with room for n entries.
func NewDict(n int) *Dict { return &Dict{entries: make([]entry, 0, n)} }

// Value is d as a Value; d must not be changed from then on.
func (d *Dict) Value() Value { return Value{k: dict, o: d} }

// Len is the number of entries.
func (d *Dict) Len() int { return len(d.entries) }

// At returns the i-th entry.
func (d *Dict) At(i int) (key, val Value) { return d.entries[i].key, d.entries[i].val }

// Get returns what is kept under a string, or a missing Value.
func (d *Dict) Get(name string) Value {
	if d.index != nil {
		if i, ok := d.index[key{k: str, s: name}]; ok {
			return d.entries[i].val
		}
		return Value{}
	}
	for i := range d.entries {
		if e := &d.entries[i]; e.key.s == name && e.key.k == str {
			return e.val
		}
	}
	return Value{}
}

// Set keeps v under a string. A key that is there keeps its place.
func (d *Dict) Set(name string, v Value) {
	d.set(Str(name), key{k: str, s: name}, v)
}

func (d *Dict) find(h key) int {
	if d.index != nil {
		if i, ok := d.index[h]; ok {
			return i
		}
		return -1
	}
	for i := range d.entries {
		e := &d.entries[i]
		if e.key.k == str {
			if h.k == str && e.key.s == h.s {
				return i
			}
			continue
		}
		if other, err := e.key.hash(); err == nil && other == h {
			return i
		}
	}
	return -1
}

// lookup returns the value of any key; an error says that it cannot be a key.
func (d *Dict) lookup(k Value) (Value, error) {
	if k.k == str {
		return d.Get(k.s), nil
	}
	h, err := k.hash()
	if err != nil {
		return Value{}, err
	}
	if i := d.find(h); i >= 0 {
		return d.entries[i].val, nil
	}
	return Value{}, nil
}

func (d *Dict) set(k Value, h key, v Value) {
	if i := d.find(h); i >= 0 {
		d.entries[i].val = v
		return
	}
	d.entries = append(d.entries, entry{k, v})
	switch {
	case d.index != nil:
		d.index[h] = len(d.entries) - 1
	case len(d.entries) > fewEntries:
		d.reindex()
	}
}

// reindex builds the index, or drops it where entries are few.
func (d *Dict) reindex() {
	d.index = nil
	if len(d.entries) <= fewEntries {
		return
	}
	d.index = make(map[key]int, len(d.entries))
	for i := range d.entries {
		h, _ := d.entries[i].key.hash() // a key can be one
		d.index[h] = i
	}
}

func (d *Dict) setAny(k, v Value) error {
	h, err := k.hash()
	if err == nil {
		d.set(k, h, v)
	}
	return err
}

func (d *Dict) clone(room int) *Dict {
	c := NewDict(len(d.entries) + room)
	c.entries = append(c.entries, d.entries...)
	c.reindex()
	return c
}

// Clone returns a copy that may be changed; values are shared.
func (d *Dict) Clone() *Dict { return d.clone(2) }

type viewKind uint8

const (
	viewKeys viewKind = iota
	viewValues
	viewItems
)

func (k viewKind) String() string { return [...]string{"keys", "values", "items"}[k] }

// dictView is what keys(), values() and items() give.
type dictView struct {
	d    *Dict
	what viewKind
}

func (w *dictView) at(i int) Value {
	e := &w.d.entries[i]
	switch w.what {
	case viewKeys:
		return e.key
	case viewValues:
		return e.val
	}
	return tupleOf([]Value{e.key, e.val})
}

// pyRange is range(start, stop, step).
type pyRange struct{ start, stop, step int64 }

func (r *pyRange) len() int64 {
	switch {
	case r.step > 0 && r.start < r.stop:
		return (r.stop-r.start-1)/r.step + 1
	case r.step < 0 && r.start > r.stop:
		return (r.start-r.stop-1)/-r.step + 1
	}
	return 0
}

func (r *pyRange) at(i int64) Value { return Int(r.start + i*r.step) }
