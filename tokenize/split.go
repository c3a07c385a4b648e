package tokenize

// scanner finds the next piece of a text at or after from; start and end are the
// text's length if there is none. It knows nothing of what is before from, except
// that a piece began there.
type scanner interface {
	next(w *work, b []byte, from int) (start, end int)
}

type behavior uint8

const (
	isolated behavior = iota
	removed
	mergedWithPrevious
	mergedWithNext
	contiguous
)

// stage is one step of a pre-tokenizer: it cuts each piece of the step before.
type stage struct {
	scan     scanner // nil: no cuts
	behavior behavior
	invert   bool
	change   changer // nil: the text stays
}

// changer alters a piece before it is cut. It may return it as it is.
type changer interface {
	change(dst, piece []byte, first bool) []byte
}

// model makes tokens of a piece.
type model interface {
	encode(w *work, piece []byte, dst []uint32) []uint32
}

type span struct{ start, end int }

// cut sends a piece through the stages from level on, and pushes what comes of it. first: it begins where the text does.
func (t *Tokenizer) cut(w *work, level int, piece []byte, first bool, dst []uint32) []uint32 {
	if len(piece) == 0 {
		return dst
	}
	if level == len(t.stages) {
		return t.push(w, piece, dst)
	}
	s := &t.stages[level]
	if s.change != nil {
		dst = t.flush(w, dst) // pieces of what it changed before are in the same memory
		for len(w.bufs) <= level {
			w.bufs = append(w.bufs, nil)
		}
		w.bufs[level] = s.change.change(w.bufs[level][:0], piece, first)
		piece = w.bufs[level]
	}
	if s.scan == nil {
		return t.cut(w, level+1, piece, first, dst)
	}
	if s.behavior == isolated && level+1 == len(t.stages) {
		for at := 0; at < len(piece); {
			from, to := s.scan.next(w, piece, at)
			if at < from {
				dst = t.push(w, piece[at:from], dst)
			}
			if from < to {
				dst = t.push(w, piece[from:to], dst)
			}
			at = to
		}
		return dst
	}
	return t.cutBy(w, s, level, piece, first, dst)
}

// cutBy cuts as the stage's behavior says; held is the part that may still be joined with the next.
func (t *Tokenizer) cutBy(w *work, s *stage, level int, piece []byte, first bool, dst []uint32) []uint32 {
	held, heldMatch := span{}, false
	send := func(p span) { dst = t.cut(w, level+1, piece[p.start:p.end], first && p.start == 0, dst) }
	part := func(p span, match bool) {
		if p.start == p.end {
			return
		}
		match = match != s.invert
		join := false
		switch s.behavior {
		case removed:
			if match {
				return
			}
		case contiguous:
			join = match == heldMatch
		case mergedWithPrevious:
			join = match && !heldMatch
		case mergedWithNext:
			join = heldMatch && !match
		case isolated:
		}
		if join && held.end > held.start {
			held.end = p.end
			heldMatch = match
			return
		}
		if held.end > held.start {
			send(held)
		}
		held, heldMatch = p, match
	}
	for at := 0; at < len(piece); {
		from, to := s.scan.next(w, piece, at)
		part(span{at, from}, false)
		part(span{from, to}, true)
		at = to
	}
	if held.end > held.start {
		send(held)
	}
	return dst
}

// prefixSpace puts a space before a piece that has none.
type prefixSpace struct{}

func (prefixSpace) change(dst, piece []byte, _ bool) []byte {
	if piece[0] != ' ' {
		dst = append(dst, ' ')
	}
	return append(dst, piece...)
}

// metaspace writes spaces as a character of their own, and puts one before.
type metaspace struct {
	with   []byte
	scheme string
}

func (m metaspace) change(dst, piece []byte, first bool) []byte {
	starts := piece[0] == ' ' || len(piece) >= len(m.with) && string(piece[:len(m.with)]) == string(m.with)
	if !starts && (m.scheme == "always" || m.scheme == "first" && first) {
		dst = append(dst, m.with...)
	}
	for _, c := range piece {
		if c == ' ' {
			dst = append(dst, m.with...)
		} else {
			dst = append(dst, c)
		}
	}
	return dst
}

var behaviors = map[string]behavior{"Isolated": isolated, "Removed": removed, "MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext": mergedWithNext, "Contiguous": contiguous}

// stages puts a pre-tokenizer's steps into one list. bytes says that the text is
// written in the byte-level alphabet after them.
func stages(c *component, to []stage) (_ []stage, bytes bool, err error) {
	if c == nil {
		return to, false, nil
	}
	switch c.Type {
	case "Sequence":
		for left := c.Pretokenizers; len(left) > 0; left = left[1:] {
			if bytes {
				return nil, false, refused("pre-tokenizer %q after ByteLevel", left[0].Type)
			}
			if isDeepseek(left) {
				to, left = append(to, stage{scan: deepseek{}}), left[len(deepseekSteps)-1:]
				continue
			}
			if to, bytes, err = stages(&left[0], to); err != nil {
				return nil, false, err
			}
		}
		return to, bytes, nil
	case "ByteLevel":
		s := stage{}
		if c.AddPrefixSpace == nil || *c.AddPrefixSpace {
			s.change = prefixSpace{}
		}
		if c.UseRegex == nil || *c.UseRegex {
			s.scan = gpt2{}
		}
		if s.scan != nil || s.change != nil {
			to = append(to, s)
		}
		return to, true, nil
	case "Split":
		s, err := splitStage(c)
		return append(to, s), false, err
	case "Digits":
		s := stage{scan: charScanner(isDigit), behavior: contiguous}
		if c.Individual {
			s.behavior = isolated
		}
		return append(to, s), false, nil
	case "Punctuation":
		b := isolated
		if c.Behavior != "" {
			var ok bool
			if b, ok = behaviors[c.Behavior]; !ok {
				return nil, false, refused("behavior %q", c.Behavior)
			}
		}
		return append(to, stage{scan: charScanner(isPunctuation), behavior: b}), false, nil
	case "Whitespace":
		return append(to, stage{scan: wordScanner{}, behavior: removed, invert: true}), false, nil
	case "WhitespaceSplit":
		return append(to, stage{scan: charScanner(isSpace), behavior: removed}), false, nil
	case "BertPreTokenizer":
		return append(to, stage{scan: charScanner(isSpace), behavior: removed}, stage{scan: charScanner(isPunctuation)}), false, nil
	case "Metaspace":
		return metaspaceStages(c, to)
	}
	return nil, false, refused("pre-tokenizer %q", c.Type)
}

func splitStage(c *component) (stage, error) {
	b, ok := behaviors[c.Behavior]
	if !ok {
		return stage{}, refused("behavior %q", c.Behavior)
	}
	s := stage{behavior: b, invert: c.Invert}
	switch {
	case c.Pattern == nil:
		return stage{}, refused("pre-tokenizer Split without a pattern")
	case c.Pattern.String != nil:
		if *c.Pattern.String == "" {
			return stage{}, refused("pre-tokenizer Split at an empty text")
		}
		s.scan = literal(*c.Pattern.String)
	case c.Pattern.Regex == nil:
		return stage{}, refused("pre-tokenizer Split at an unknown pattern")
	default:
		scan, err := scannerFor(*c.Pattern.Regex)
		if err != nil {
			return stage{}, err
		}
		s.scan = scan
	}
	if total, ok := s.scan.(interface{ total() bool }); ok && total.total() && b == removed && c.Invert {
		s.behavior, s.invert = isolated, false // there is nothing between the pieces
	}
	return s, nil
}

func metaspaceStages(c *component, to []stage) ([]stage, bool, error) {
	m := metaspace{with: []byte(c.Replacement), scheme: c.PrependScheme}
	if m.scheme == "" {
		m.scheme = "always"
	}
	if c.AddPrefixSpace != nil && !*c.AddPrefixSpace {
		m.scheme = "never"
	}
	if len([]rune(c.Replacement)) != 1 {
		return nil, false, refused("pre-tokenizer Metaspace with %q", c.Replacement)
	}
	s := stage{change: m}
	if c.Split == nil || *c.Split {
		s.scan, s.behavior = literal(m.with), mergedWithNext
	}
	return append(to, s), false, nil
}
