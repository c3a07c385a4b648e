package tokenize

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"sync"
	"unicode/utf8"
)

// What the judges' libraries know of Unicode (category, combining class, forms,
// lower case), each as they answered for every code point: testdata/tables.py.
// The tables of a Go release are of another version of Unicode.
//
//go:embed tables.bin
var tablesBin []byte

// A category is one of the general categories, in the order of tables.py, with
// white space among the control characters told apart.
const (
	catCn = iota
	catLu
	catLl
	catLt
	catLm
	catLo
	catMn
	catMc
	catMe
	catNd
	catNl
	catNo
	catPc
	catPd
	catPs
	catPe
	catPi
	catPf
	catPo
	catSm
	catSc
	catSk
	catSo
	catZs
	catZl
	catZp
	catCc
	catCf
	catCo
	catSpace   // white space that is Cc
	catNewline // \r and \n
	catCount
	catMask = 0x1f
	catHan  = 0x80 // added: script Han
	catIdeo = 0x40 // added: an ideograph or kana of [一-龥぀-ゟ゠-ヿ]
)

var categoryNames = [...]string{"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
	"Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cc", "Cc"}

// A class is a set of properties by which the scanners tell characters apart.
type class uint16

const (
	classL class = 1 << iota
	classN
	classM
	classP
	classS
	classSpace
	classNewline
	classUpper // Lu Lt Lm Lo M: what may begin a word of o200k
	classLower // Ll Lm Lo M: what may end it
	classHan
	classMn
	classIdeograph
)

// blockTable is a table over all code points, in blocks of 256 of which equal ones are kept once.
type blockTable struct {
	index  [0x1100]uint8
	blocks [][256]uint8
}

func (s *blockTable) at(r rune) uint8 { return s.blocks[s.index[r>>8]][r&0xff] }

// unicodeTables is what tables.bin says; it never changes.
type unicodeTables struct {
	category  blockTable
	combining blockTable // canonical combining class
	canonical map[rune][]rune
	compat    map[rune][]rune // where it differs from canonical
	pairs     map[[2]rune]rune
	lower     map[rune][]rune
	classes   [256]class // of a category, with what is added
	ascii     [256]class // of a byte; 0 beyond ASCII
	quick     blockTable // bits of quickC, quickK
	traits    blockTable
	clusters  blockTable // of grapheme clusters (precompiled.go)
}

// Traits as the parts of the Hugging Face library define them, each for itself.
const (
	traitWord        = 1 << iota // \w
	traitDigit                   // pre-tokenizer Digits
	traitPunctuation             // pre-tokenizers Punctuation and Bert
	traitMark                    // normalizer StripAccents
	traitRemoved                 // BertNormalizer: clean_text takes it out
	traitBlank                   // BertNormalizer: clean_text makes it a space
	traitChinese                 // BertNormalizer
	traitAccent                  // BertNormalizer: strip_accents takes it out
)

func (t *unicodeTables) word(r rune) bool { return t.traits.at(r)&traitWord != 0 }

// What a code point is to the normal forms.
const (
	quickC  = 1 << iota // may change or be moved by NFC
	quickK              // the same for NFKC
	quickNC             // not a start: what is before it belongs to it
)

var tables = sync.OnceValue(func() *unicodeTables {
	t, err := readTables(tablesBin)
	if err != nil { // the file is part of the program
		return &unicodeTables{}
	}
	return t
})

var errTables = errors.New("tokenize: tables.bin is damaged")

func readTables(b []byte) (*unicodeTables, error) {
	t := &unicodeTables{}
	section := func() []byte {
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			return nil
		}
		s := b[k : k+int(n)]
		b = b[k+int(n):]
		return s
	}
	flat := make([]uint8, 0x110000)
	if !readRuns(section(), flat) {
		return nil, errTables
	}
	for _, r := range []rune{9, 11, 12, 0x85} {
		flat[r] = catSpace
	}
	flat['\r'], flat['\n'] = catNewline, catNewline
	for r := '一'; r <= '龥'; r++ {
		flat[r] |= catIdeo
	}
	for r := '\u3040'; r <= '\u30ff'; r++ {
		flat[r] |= catIdeo
	}
	t.category.fill(flat)
	if !readRuns(section(), flat) {
		return nil, errTables
	}
	t.combining.fill(flat)
	t.canonical, t.compat = readMap(section()), readMap(section())
	pairs := readMap(section())
	t.pairs = make(map[[2]rune]rune, len(pairs))
	for c, p := range pairs {
		t.pairs[[2]rune{p[0], p[1]}] = c
	}
	t.lower = readMap(section())
	if !readRuns(section(), flat) {
		return nil, errTables
	}
	t.traits.fill(flat)
	if !readRuns(section(), flat) {
		return nil, errTables
	}
	t.clusters.fill(flat)
	for c := range catCount {
		t.classes[c] = classOf(c)
		t.classes[c|catHan] = classOf(c) | classHan
		t.classes[c|catIdeo] = classOf(c) | classIdeograph
		t.classes[c|catHan|catIdeo] = classOf(c) | classHan | classIdeograph
	}
	for c := range 128 {
		t.ascii[c] = t.classes[t.category.at(rune(c))]
	}
	for i := range flat {
		flat[i] = t.combining.at(rune(i))
	}
	t.fillQuick(flat)
	return t, nil
}

// fillQuick notes for each code point whether a text of such needs no work to be in a normal form.
func (t *unicodeTables) fillQuick(flat []uint8) {
	for r := range flat {
		if flat[r] != 0 {
			flat[r] = quickC | quickK | quickNC
		}
	}
	recomposed := make(map[rune]bool, len(t.pairs))
	for p, c := range t.pairs {
		recomposed[c] = true
		flat[p[1]] |= quickC | quickK | quickNC
	}
	for c, d := range t.canonical {
		if !recomposed[c] {
			flat[c] |= quickC | quickK
		}
		if t.combining.at(d[0]) != 0 {
			flat[c] |= quickNC
		}
	}
	for c, d := range t.compat {
		flat[c] |= quickK
		if t.combining.at(d[0]) != 0 || flat[d[0]]&quickNC != 0 {
			flat[c] |= quickNC
		}
	}
	for r := hangulV; r < hangulV+hangulVCount; r++ {
		flat[r] |= quickC | quickK | quickNC
	}
	for r := hangulT; r < hangulT+hangulTCount; r++ {
		flat[r] |= quickC | quickK | quickNC
	}
	// A halfwidth vowel of Hangul becomes one that composes.
	for c, d := range t.compat {
		if flat[d[0]]&quickNC != 0 {
			flat[c] |= quickNC
		}
	}
	t.quick.fill(flat)
}

func readRuns(b []byte, flat []uint8) bool {
	at := 0
	for len(b) > 0 {
		n, k := binary.Uvarint(b)
		if k <= 0 || len(b) == k || n > uint64(len(flat)-at) {
			return false
		}
		v := b[k]
		for i := range flat[at : at+int(n)] {
			flat[at+i] = v
		}
		at += int(n)
		b = b[k+1:]
	}
	return at == len(flat)
}

func readMap(b []byte) map[rune][]rune {
	m := make(map[rune][]rune, len(b)/6)
	all := make([]rune, 0, len(b)/2)
	c := rune(0)
	for len(b) > 0 {
		next := func() uint64 {
			v, k := binary.Uvarint(b)
			b = b[max(k, 1):]
			return v
		}
		c += rune(next())
		n := int(next())
		from := len(all)
		for range n {
			all = append(all, rune(next()))
		}
		m[c] = all[from:len(all):len(all)]
	}
	return m
}

func (s *blockTable) fill(flat []uint8) {
	seen := map[[256]uint8]uint8{}
	s.blocks = s.blocks[:0]
	for i := range s.index {
		block := [256]uint8(flat[i*256 : i*256+256])
		at, ok := seen[block]
		if !ok {
			at = uint8(len(s.blocks))
			seen[block] = at
			s.blocks = append(s.blocks, block)
		}
		s.index[i] = at
	}
}

func classOf(c int) class {
	switch {
	case c == catLu || c == catLt:
		return classL | classUpper
	case c == catLl:
		return classL | classLower
	case c == catLm || c == catLo:
		return classL | classUpper | classLower
	case c == catMn:
		return classM | classUpper | classLower | classMn
	case c == catMc || c == catMe:
		return classM | classUpper | classLower
	case c >= catNd && c <= catNo:
		return classN
	case c >= catPc && c <= catPo:
		return classP
	case c >= catSm && c <= catSo:
		return classS
	case c >= catZs && c <= catZp || c == catSpace:
		return classSpace
	case c == catNewline:
		return classSpace | classNewline
	}
	return 0
}

// classAt is the class of the character at i of a valid text, and its length.
func (t *unicodeTables) classAt(b []byte, i int) (class, int) {
	c := b[i]
	if c < utf8.RuneSelf {
		return t.ascii[c], 1
	}
	r, n := runeAt(b, i)
	return t.classes[t.category.at(r)], n
}

// runeAt decodes one character of a text that is known to be valid.
func runeAt(b []byte, i int) (rune, int) {
	c := b[i]
	switch {
	case c < 0x80:
		return rune(c), 1
	case c < 0xe0:
		if i+1 < len(b) {
			return rune(c&0x1f)<<6 | rune(b[i+1]&0x3f), 2
		}
	case c < 0xf0:
		if i+2 < len(b) {
			return rune(c&0x0f)<<12 | rune(b[i+1]&0x3f)<<6 | rune(b[i+2]&0x3f), 3
		}
	default:
		if i+3 < len(b) {
			return (rune(c&0x07)<<18 | rune(b[i+1]&0x3f)<<12 | rune(b[i+2]&0x3f)<<6 | rune(b[i+3]&0x3f)) & 0x1fffff, 4
		}
	}
	return utf8.RuneError, 1
}
