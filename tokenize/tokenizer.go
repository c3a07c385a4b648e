package tokenize

import (
	"errors"
	"sync"
	"unicode/utf8"
	"unsafe"
)

// ErrUnsupported is wrapped by the error of a file that asks for something which is
// not done exactly here; the error names it.
var ErrUnsupported = errors.New("tokenize: not supported")

// ErrText says that a text is not valid UTF-8: what an engine would make of it depends
// on who decodes it first.
var ErrText = errors.New("tokenize: the text is not valid UTF-8")

// Options bound what a tokenizer keeps beside its file's contents. The zero value is
// good for one model of a router.
type Options struct {
	// PieceCache is how many bytes the cache of pieces takes (default 4 MiB; rounded
	// down to a power of two; negative: none).
	PieceCache int
	// TurnCache bounds the bytes of texts between special tokens that are kept with their
	// tokens, so that the next turn of a conversation encodes what is new (default 0: none).
	TurnCache int
	// Specials are the special tokens of a tiktoken file, by id, which the file does not hold.
	Specials map[string]uint32
	// Pattern is the pattern of a tiktoken file, which the file does not hold.
	Pattern string
	// Kimi cuts texts as Kimi's tokenizer does before tiktoken sees them: at 400,000
	// characters, and in runs of 25,000 with or without white space.
	Kimi bool
}

// Tokenizer makes the ids of a text as one model's tokenizer does. It does not change
// after loading but for its caches, and may be used by any number of goroutines.
type Tokenizer struct {
	raw         *finder // added tokens that are found before normalizing
	normalizers []normalizer
	normal      *finder // and after
	stages      []stage
	model       model
	cache       *pieceCache
	wholes      *vocab       // pieces that are tokens of it are those tokens; nil: the model says
	single      *[256]uint32 // tokens of pieces of one byte; nil where they are not known
	turns       *turnCache
	safe        func(b []byte, i int) bool // nothing crosses from before i to i; nil: not proven
	before      []uint32                   // what a post-processor adds
	after       []uint32
	decoding    decoding
	chunks      bool   // Kimi
	trims       bool   // the file's offsets leave out spaces
	offset      uint32 // tekken: of ordinary tokens, behind the special ones
	memory      int
	pool        sync.Pool
}

// Encode appends the ids of text to dst. special adds what the tokenizer's post-processor
// adds, such as a BOS: for a prompt as a client wrote it, not for one that a chat template made.
// Special tokens that stand in the text are taken for such.
func (t *Tokenizer) Encode(dst []uint32, text string, special bool) ([]uint32, error) {
	return t.EncodeFor(dst, text, special, "")
}

// EncodeFor is Encode for somebody whose texts nobody else is to find in the turn cache, nor
// tell by how long it takes that they are there; "" is everybody.
func (t *Tokenizer) EncodeFor(dst []uint32, text string, special bool, whose string) ([]uint32, error) {
	return t.encode(dst, text, special, false, whose)
}

// EncodePlain is EncodeFor for a text in which special tokens are text like any other, and to
// which nothing is added. The error is ErrUnsupported of a tokenizer that cuts texts (Kimi's).
func (t *Tokenizer) EncodePlain(dst []uint32, text, whose string) ([]uint32, error) {
	if t.chunks {
		return dst, refused("a text without special tokens of a tokenizer that cuts texts")
	}
	return t.encode(dst, text, false, true, whose)
}

func (t *Tokenizer) encode(dst []uint32, text string, special, plain bool, whose string) ([]uint32, error) {
	if !utf8.ValidString(text) {
		return dst, ErrText
	}
	if len(text) > 1<<31-1 {
		return dst, errors.New("tokenize: the text is longer than 2 GiB")
	}
	w := t.work()
	defer t.done(w)
	w.whose = whose
	w.reg = matcher{stack: w.reg.stack[:0], steps: 4096 + stepsPerByte*len(text)}
	if cap(dst) == 0 {
		dst = make([]uint32, 0, len(text)/bytesPerToken+16) // grown bit by bit it would be copied several times
	}
	from := len(dst)
	if special {
		dst = append(dst, t.before...)
	}
	body := len(dst)
	b := unsafe.Slice(unsafe.StringData(text), len(text)) // read only
	switch {
	case plain:
		dst = t.segment(w, t.normalize(w, b), true, dst)
	case t.chunks:
		dst = t.chunked(w, b, dst)
	case t.turns != nil && t.raw.plain():
		dst = t.stretches(w, b, dst)
	default:
		dst = t.text(w, b, true, dst)
	}
	if t.offset != 0 {
		for i := body; i < len(dst); i++ {
			dst[i] += t.offset
		}
	}
	if special {
		dst = append(dst, t.after...)
	}
	if w.reg.err != nil {
		return dst[:from], w.reg.err
	}
	return dst, nil
}

// bytesPerToken is how many bytes of text a token has at least in most texts: what is not used of the
// memory is never touched.
const bytesPerToken = 3

func (t *Tokenizer) work() *work {
	if w, ok := t.pool.Get().(*work); ok {
		return w
	}
	return newWork()
}

// done keeps the memory for the next text, unless one of rare length made it large.
func (t *Tokenizer) done(w *work) {
	w.whose = "" // it is the caller's memory
	clear(w.pieces[:])
	if cap(w.rank) < 1<<18 && cap(w.text)+cap(w.text2) < 16<<20 {
		t.pool.Put(w)
	}
}

// Memory is about how many bytes the tokenizer takes, its caches when full included.
func (t *Tokenizer) Memory() int { return t.memory }

// text goes from added token to added token; first: it is the beginning of all text.
func (t *Tokenizer) text(w *work, b []byte, first bool, dst []uint32) []uint32 {
	done, from := 0, 0
	for done < len(b) || from < len(b) {
		start, end, on, token := t.raw.find(b, done, from)
		if done < start {
			dst = t.gap(w, b[done:start], first && done == 0, dst)
		}
		if token == none {
			break
		}
		dst = append(dst, t.raw.tokens[token].ID)
		done, from = end, on
	}
	return dst
}

// gap normalizes what is between two added tokens, and looks for those that are found then.
func (t *Tokenizer) gap(w *work, b []byte, first bool, dst []uint32) []uint32 {
	b = t.normalize(w, b)
	done, from := 0, 0
	for done < len(b) || from < len(b) {
		start, end, on, token := t.normal.find(b, done, from)
		if done < start {
			dst = t.segment(w, b[done:start], first && done == 0, dst)
		}
		if token == none {
			break
		}
		dst = append(dst, t.normal.tokens[token].ID)
		done, from = end, on
	}
	return dst
}

var errGrown = errors.New("tokenize: the tokenizer's normalizer makes this text too long")

// normalize is the text as the normalizer leaves it, in w's memory or as it was.
func (t *Tokenizer) normalize(w *work, b []byte) []byte {
	most := maxGrown*len(b) + 4096
	for _, n := range t.normalizers {
		out := n.apply(w, w.text2[:0], b)
		w.text, w.text2 = out, w.text
		if b = out; len(b) > most {
			w.reg.err = errGrown
			return nil
		}
	}
	return b
}

// segment encodes text without added tokens: from the turn cache, as far as it goes.
func (t *Tokenizer) segment(w *work, b []byte, first bool, dst []uint32) []uint32 {
	if t.turns == nil || len(b) < turnLeast {
		return t.whole(w, b, first, dst)
	}
	return t.turn(w, b, first, dst)
}
