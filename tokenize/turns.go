package tokenize

import (
	"container/list"
	"sync"
)

const (
	turnLeast = 256  // shorter texts are encoded: that takes less than to look
	turnChunk = 4096 // from here on a text is cut where that is safe
)

// turnCache remembers the tokens of whole texts between special tokens, and of long ones in
// chunks: what a conversation's next turn repeats. What it returns is what encoding returns, since
//   - a text between added tokens is encoded without regard to what is around it, but for whether
//     it is the first, which is part of the key;
//   - a chunk ends only where no pattern's match crosses and none looks back: proveSafe.
//
// Texts are compared whole, not by hash. The least recently used go when the bytes are used up.
type turnCache struct {
	mu    sync.Mutex
	byKey map[uint64]*list.Element // of *turnEntry
	order list.List                // most recent first
	bytes int
	most  int
}

type turnEntry struct {
	key  uint64
	text string
	ids  []uint32
}

// turnOverhead is what an entry takes beside its text and ids.
const turnOverhead = 200

func newTurnCache(most int) *turnCache {
	if most <= 0 {
		return nil
	}
	return &turnCache{byKey: map[uint64]*list.Element{}, most: most}
}

func turnKey(b []byte, first bool) uint64 {
	h := hashBytes(b)
	if first {
		h = ^h
	}
	return h
}

func (c *turnCache) get(key uint64, b []byte, dst []uint32) ([]uint32, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[key]
	if e == nil {
		return dst, false
	}
	entry := e.Value.(*turnEntry)
	if entry.text != string(b) {
		return dst, false
	}
	c.order.MoveToFront(e)
	return append(dst, entry.ids...), true
}

func (c *turnCache) put(key uint64, b []byte, ids []uint32) {
	size := len(b) + 4*len(ids) + turnOverhead
	if size > c.most/2 {
		return
	}
	entry := &turnEntry{key: key, text: string(b), ids: append([]uint32(nil), ids...)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byKey[key]; e != nil {
		c.remove(e)
	}
	c.byKey[key] = c.order.PushFront(entry)
	c.bytes += size
	for c.bytes > c.most {
		c.remove(c.order.Back())
	}
}

func (c *turnCache) remove(e *list.Element) {
	entry := c.order.Remove(e).(*turnEntry)
	delete(c.byKey, entry.key)
	c.bytes -= len(entry.text) + 4*len(entry.ids) + turnOverhead
}

// turn encodes a segment chunk by chunk.
func (t *Tokenizer) turn(w *work, b []byte, first bool, dst []uint32) []uint32 {
	for len(b) > 0 {
		end := len(b)
		if t.safe != nil && len(b) > turnChunk {
			for i := turnChunk; i < len(b); i++ {
				if t.safe(b, i) {
					end = i
					break
				}
			}
		}
		key := turnKey(b[:end], first)
		out, ok := t.turns.get(key, b[:end], dst)
		if !ok {
			from := len(dst)
			out = t.cut(w, 0, b[:end], first, dst)
			t.turns.put(key, b[:end], out[from:])
		}
		dst, b, first = out, b[end:], false
	}
	return dst
}

// proveSafe is where a text can be cut so that both parts encode as the whole does: before a
// letter of ASCII that follows a line feed. In each of the patterns that are known, what matches
// \n goes on, if at all, with white space, line ends or a slash; the match that begins with the
// letter is the same whatever is before it, since none looks back; and white space before the
// cut is split the same way whether a letter or the end follows when it ends with a line end.
// A pattern that is not known proves nothing, nor does one that leaves the text in one piece.
func (t *Tokenizer) proveSafe() func(b []byte, i int) bool {
	if len(t.stages) == 0 {
		return nil
	}
	for _, s := range t.stages {
		if s.change != nil {
			return nil
		}
		switch s.scan.(type) {
		case *cl100k, *o200k, deepseek, numbers, ideographs:
		default:
			return nil
		}
	}
	if _, ok := t.stages[len(t.stages)-1].scan.(numbers); ok {
		return nil
	}
	if _, ok := t.stages[len(t.stages)-1].scan.(ideographs); ok {
		return nil
	}
	return func(b []byte, i int) bool { return b[i-1] == '\n' && isLatin(b[i]) }
}
