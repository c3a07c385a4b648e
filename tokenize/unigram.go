package tokenize

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// unigram takes the tokens whose scores are the most together, the way that the
// Hugging Face library does: forwards, a later way only if it is better.
type unigram struct {
	vocab  *vocab
	scores []float64
	prefix *trie
	unk    uint32
	worst  float64 // of a character that is no token
	bytes  *[256]uint32
}

// unknownPenalty is how much worse a character that is no token is than the worst token.
const unknownPenalty = 10

var errNoUnknown = errors.New("tokenize: the text has a character that is no token, and the tokenizer has none for such")

// step is the best way to the end of a character.
type step struct {
	score float64
	from  int32 // -1: none yet
	id    uint32
}

func (m *unigram) encode(w *work, p []byte, dst []uint32) []uint32 {
	w.steps = slices.Grow(w.steps[:0], len(p)+1)[:len(p)+1]
	best := w.steps
	for i := range best {
		best[i] = step{from: -1}
	}
	offer := func(from, to int, score float64, id uint32) {
		if s := &best[to]; s.from < 0 || score > s.score {
			*s = step{score, int32(from), id}
		}
	}
	for at := 0; at < len(p); {
		_, n := runeAt(p, at)
		here, single := best[at].score, false
		node := uint32(0)
		for end := at; end < len(p); {
			v := m.prefix.edges.get(node, uint32(p[end]))
			if v == noPair {
				break
			}
			node = uint32(v)
			end++
			if id := m.prefix.ends[node]; id != none {
				offer(at, end, m.scores[id]+here, id)
				single = single || end == at+n
			}
		}
		if !single {
			if m.unk == none {
				w.reg.err = errNoUnknown
				return dst
			}
			offer(at, at+n, m.worst+here, m.unk)
		}
		at += n
	}
	// Backwards; unknown characters side by side are one.
	from := len(dst)
	for end := len(p); end > 0; {
		s := best[end]
		start := int(s.from)
		if s.id == m.unk {
			for start > 0 && best[start].id == m.unk {
				start = int(best[start].from)
			}
		}
		dst = m.name(p[start:end], dst)
		end = start
	}
	slices.Reverse(dst[from:])
	return dst
}

// name appends, back to front, the id of what is a token or else its bytes'.
func (m *unigram) name(s []byte, dst []uint32) []uint32 {
	if id := m.vocab.find(s); id != none {
		return append(dst, id)
	}
	if m.bytes != nil {
		for _, c := range s {
			if m.bytes[c] == none {
				return append(dst, m.unk)
			}
		}
		for i := len(s) - 1; i >= 0; i-- {
			dst = append(dst, m.bytes[s[i]])
		}
		return dst
	}
	return append(dst, m.unk)
}

func (t *Tokenizer) loadUnigram(m map[string][]byte) (*words, error) {
	o := struct {
		Unk   *uint32
		Bytes bool
	}{}
	for name, to := range map[string]any{"unk_id": &o.Unk, "byte_fallback": &o.Bytes} {
		if b := m[name]; b != nil {
			if err := json.Unmarshal(b, to); err != nil {
				return nil, fmt.Errorf("model: %s: %w", name, err)
			}
		}
	}
	u := &unigram{vocab: newVocab(len(m["vocab"])/32, len(m["vocab"])/3), prefix: newTrie(), unk: none, worst: math.Inf(1)}
	r := newReader(m["vocab"])
	err := r.array(func() error {
		id := uint32(len(u.scores))
		n := 0
		return r.array(func() error {
			n++
			switch n {
			case 1:
				token, err := r.str()
				if err != nil {
					return err
				}
				if u.vocab.find(token) != none || len(token) == 0 || len(token) > maxAdded {
					return refused("Unigram with the token %.20q twice, empty or longer than %d bytes", token, maxAdded)
				}
				if err := u.vocab.add(token, id); err != nil {
					return err
				}
				return u.prefix.add(token, id)
			case 2:
				b, err := r.skip()
				if err != nil {
					return err
				}
				score, ok := serdeFloat(b)
				if !ok {
					return errJSON
				}
				u.scores = append(u.scores, score)
				u.worst = min(u.worst, score)
				return nil
			}
			return errJSON
		})
	})
	if err != nil || len(u.scores) != len(u.vocab.lens) {
		return nil, fmt.Errorf("model: vocab: %w", errors.Join(err, errJSON))
	}
	u.worst -= unknownPenalty
	if o.Unk != nil {
		if int(*o.Unk) >= len(u.scores) {
			return nil, refused("Unigram whose unk_id is no token")
		}
		u.unk = *o.Unk
	}
	if o.Bytes {
		u.bytes = &[256]uint32{}
		for c := range u.bytes {
			u.bytes[c] = u.vocab.find(fmt.Appendf(nil, "<0x%02X>", c))
		}
	}
	t.model = u
	t.memory += u.vocab.size() + len(u.scores)*8 + u.prefix.edges.size() + len(u.prefix.ends)*4
	return &words{find: func(s string) uint32 { return u.vocab.find([]byte(s)) }, size: len(u.scores), vocab: u.vocab}, nil
}

// serdeFloat reads a number as serde_json does by default: the digits as far as 64 bits
// hold them, then one multiplication or division by a power of ten. The last bit may be
// another than that of the nearest number, and scores are added and compared.
func serdeFloat(b []byte) (float64, bool) {
	i, digits, exponent := 0, uint64(0), 0
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		i++
	}
	first, full := i, false
	take := func(fraction bool) {
		for ; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
			d := uint64(b[i] - '0')
			if full || digits > (math.MaxUint64-d)/10 {
				full = true
				if !fraction {
					exponent++
				}
				continue
			}
			digits = digits*10 + d
			if fraction {
				exponent--
			}
		}
	}
	take(false)
	if i == first {
		return 0, false
	}
	if i < len(b) && b[i] == '.' {
		i++
		take(true)
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		var e int
		if _, err := fmt.Sscanf(string(b[i+1:]), "%d", &e); err != nil || e > 400 || e < -400 {
			return 0, false
		}
		exponent += e
		i = len(b)
	}
	f := float64(digits)
	for ; exponent < -308 && f != 0; exponent += 308 {
		f /= 1e308
	}
	switch {
	case exponent > 308:
		return 0, false
	case exponent >= 0:
		f *= powerOfTen(exponent)
	case f != 0:
		f /= powerOfTen(-exponent)
	}
	if negative {
		f = -f
	}
	return f, i == len(b) && !math.IsInf(f, 0)
}

// powerOfTen is the nearest number; math.Pow10 multiplies two of them.
func powerOfTen(n int) float64 {
	if n < 32 {
		return math.Pow10(n)
	}
	f, _ := strconv.ParseFloat("1e"+strconv.Itoa(n), 64)
	return f
}
