package tokenize

import (
	"bytes"
	"errors"
	"unicode/utf8"
)

// added is a token that is found in the text before anything else is done with it.
type added struct {
	Content    string `json:"content"`
	ID         uint32 `json:"id"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// maxAdded bounds an added token's length, and with it the work at each place of a text.
const maxAdded = 512

// finder finds added tokens, leftmost first and of those the longest.
type finder struct {
	tokens []added
	first  [256]bool
	only   int  // the one first byte of all; -1 if there are several
	flags  bool // some tokens look at what is around them
	trie   *trie
}

func newFinder() *finder { return &finder{only: -1, trie: newTrie()} }

// trie finds what a text begins with, byte by byte from node 0.
type trie struct {
	edges *pairs   // of a node and a byte: the next node
	ends  []uint32 // by node: what ends there, or none
}

func newTrie() *trie { return &trie{edges: newPairs(64), ends: []uint32{none}} }

var errSame = errors.New("two of the same")

func (t *trie) add(key []byte, value uint32) error {
	node := uint32(0)
	for _, c := range key {
		v := t.edges.get(node, uint32(c))
		if v == noPair {
			v = uint64(len(t.ends))
			t.edges.set(node, uint32(c), 0, uint32(v))
			t.ends = append(t.ends, none)
		}
		node = uint32(v)
	}
	if t.ends[node] != none {
		return errSame
	}
	t.ends[node] = value
	return nil
}

// add takes a token that is found where pattern stands.
func (f *finder) add(a added, pattern []byte) error {
	if len(pattern) > maxAdded {
		return refused("added token %.20q…: longer than %d bytes", a.Content, maxAdded)
	}
	if err := f.trie.add(pattern, uint32(len(f.tokens))); err != nil {
		return refused("added token %q: %w", a.Content, err)
	}
	f.tokens = append(f.tokens, a)
	f.flags = f.flags || a.SingleWord || a.LStrip || a.RStrip
	f.first[pattern[0]] = true
	if len(f.tokens) == 1 {
		f.only = int(pattern[0])
	} else if f.only != int(pattern[0]) {
		f.only = -1
	}
	return nil
}

// plain reports whether no token looks at what is around it.
func (f *finder) plain() bool { return !f.flags }

// match is the next token's place at or after from; token none if there is no more.
func (f *finder) match(b []byte, from int) (start, end int, token uint32) {
	if f == nil || len(f.tokens) == 0 {
		return len(b), len(b), none
	}
	for i := from; i < len(b); i++ {
		if f.only >= 0 {
			k := bytes.IndexByte(b[i:], byte(f.only))
			if k < 0 {
				break
			}
			i += k
		} else if !f.first[b[i]] {
			continue
		}
		node, found := uint32(0), none
		for j := i; j < len(b); j++ {
			v := f.trie.edges.get(node, uint32(b[j]))
			if v == noPair {
				break
			}
			node = uint32(v)
			if f.trie.ends[node] != none {
				found, end = f.trie.ends[node], j+1
			}
		}
		if found != none {
			return i, end, found
		}
	}
	return len(b), len(b), none
}

// find is the next token's place with what its flags make of it. done is up to where
// text is taken, from where to look on: a token that is rejected is passed over whole.
func (f *finder) find(b []byte, done, from int) (start, end, on int, token uint32) {
	for {
		start, end, token = f.match(b, from)
		if token == none {
			return len(b), len(b), len(b), none
		}
		on = end
		a := &f.tokens[token]
		if a.SingleWord && (start > 0 && isWord(b, lastRune(b, start)) || end < len(b) && isWord(b, end)) {
			from = on
			continue
		}
		t := tables()
		if a.LStrip {
			for start > done {
				i := lastRune(b, start)
				if c, _ := t.classAt(b, i); c&classSpace == 0 {
					break
				}
				start = i
			}
		}
		if a.RStrip {
			for end < len(b) {
				c, n := t.classAt(b, end)
				if c&classSpace == 0 {
					break
				}
				end += n
			}
		}
		return start, end, on, token
	}
}

// isWord says whether the character at i is one of a word: \w.
func isWord(b []byte, i int) bool {
	c := b[i]
	if c < utf8.RuneSelf {
		return c == '_' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
	}
	r, _ := runeAt(b, i)
	return tables().word(r)
}
