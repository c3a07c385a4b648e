package tokenize

import (
	"container/list"
	"strings"
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
//   - so is a stretch of such texts with the added tokens that they end with: stretches;
//   - a chunk ends only where no pattern's match crosses and none looks back: proveSafe.
//
// Texts are compared whole, not by hash, and so is whose they are. The least recently used go when the bytes are used up.
type turnCache struct {
	mu    sync.Mutex
	byKey map[uint64]*list.Element // of *turnEntry
	order list.List                // most recent first
	bytes int
	most  int
}

type turnEntry struct {
	key   uint64
	whose string
	text  string
	ids   []uint32
}

// turnOverhead is what an entry takes beside its text and ids.
const turnOverhead = 200

func newTurnCache(most int) *turnCache {
	if most <= 0 {
		return nil
	}
	return &turnCache{byKey: map[uint64]*list.Element{}, most: most}
}

func turnKey(b []byte, first bool, whose string) uint64 {
	h := hashBytes(b)
	if whose != "" {
		h ^= hashBytes([]byte(whose)) * 0x9E3779B97F4A7C15
	}
	if first {
		h = ^h
	}
	return h
}

func (c *turnCache) get(key uint64, whose string, b []byte, dst []uint32) ([]uint32, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[key]
	if e == nil {
		return dst, false
	}
	entry := e.Value.(*turnEntry)
	if entry.text != string(b) || entry.whose != whose {
		return dst, false
	}
	c.order.MoveToFront(e)
	return append(dst, entry.ids...), true
}

func (c *turnCache) put(key uint64, whose string, b []byte, ids []uint32) {
	size := len(b) + len(whose) + 4*len(ids) + turnOverhead
	if size > c.most/2 {
		return
	}
	entry := &turnEntry{key: key, whose: strings.Clone(whose), text: string(b), ids: append([]uint32(nil), ids...)}
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
	c.bytes -= len(entry.text) + len(entry.whose) + 4*len(entry.ids) + turnOverhead
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
		key := turnKey(b[:end], first, w.whose)
		out, ok := t.turns.get(key, w.whose, b[:end], dst)
		if !ok {
			from := len(dst)
			out = t.whole(w, b[:end], first, dst)
			t.turns.put(key, w.whose, b[:end], out[from:])
		}
		dst, b, first = out, b[end:], false
	}
	return dst
}

// stretches encodes a text in stretches of some length that end with an added token. Where added
// tokens have none of the flags that look around them, which ones stand in a stretch depends on
// the stretch alone: what follows it begins none that the stretch does not hold whole, as of
// several tokens at a place the longest was found with all of the text in view. So texts are
// remembered, too, that have an added token in every line, as Gemma's code has for tabs and empty lines;
// and what is remembered is not normalized again.
func (t *Tokenizer) stretches(w *work, b []byte, dst []uint32) []uint32 {
	begin, done := 0, 0 // of the stretch, of the gap
	for done < len(b) {
		start, end, _, token := t.raw.find(b, done, done)
		long := start-done >= turnChunk // and remembered by itself, in chunks
		if token != none && !long && end-begin < turnChunk {
			done = end
			continue
		}
		if long {
			dst = t.stretch(w, b[begin:done], begin == 0, dst)
			begin = done
		}
		if token == none {
			break
		}
		if long {
			dst = append(t.gap(w, b[done:start], done == 0, dst), t.raw.tokens[token].ID)
		} else {
			dst = t.stretch(w, b[begin:end], begin == 0, dst)
		}
		begin, done = end, end
	}
	return t.text(w, b[begin:], begin == 0, dst) // the end is another the next time
}

func (t *Tokenizer) stretch(w *work, b []byte, first bool, dst []uint32) []uint32 {
	if len(b) < turnLeast {
		return t.text(w, b, first, dst)
	}
	key := mix(turnKey(b, first, w.whose), hashA) // not that of a gap with the same text
	out, ok := t.turns.get(key, w.whose, b, dst)
	if !ok {
		from := len(dst)
		if out = t.text(w, b, first, dst); w.reg.err == nil {
			t.turns.put(key, w.whose, b, out[from:])
		}
	}
	return out
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
		case *cl100k, *o200k, deepseek, numbers:
		default:
			return nil
		}
	}
	if _, ok := t.stages[len(t.stages)-1].scan.(numbers); ok {
		return nil
	}
	return func(b []byte, i int) bool { return b[i-1] == '\n' && isLatin(b[i]) }
}
