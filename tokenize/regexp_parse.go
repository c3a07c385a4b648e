package tokenize

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxProgram bounds a compiled pattern, maxPattern its text.
const (
	maxProgram = 20_000
	maxPattern = 1 << 16
	maxGroups  = 32
	maxRanges  = 400
)

// compile reads a pattern. Oniguruma, which the Hugging Face library uses, and Rust's
// fancy-regex, which tiktoken uses, agree on all that it takes.
func compile(pattern string) (*regexp, error) {
	if len(pattern) > maxPattern {
		return nil, errors.New("the pattern is too long")
	}
	p := &parser{in: []rune(pattern), re: &regexp{}}
	nullable, err := p.alternatives(0)
	if err != nil {
		return nil, err
	}
	if p.at < len(p.in) {
		return nil, p.odd("unmatched )")
	}
	if nullable {
		return nil, errors.New("the pattern matches an empty text")
	}
	p.emit(inst{op: opMatch})
	return p.re, nil
}

type parser struct {
	in   []rune
	at   int
	re   *regexp
	fold bool // without regard to case
}

func (p *parser) odd(what string) error {
	return fmt.Errorf("%s at character %d of the pattern", what, p.at)
}

func (p *parser) more() bool { return p.at < len(p.in) }

func (p *parser) looking(s string) bool {
	return strings.HasPrefix(string(p.in[p.at:min(p.at+len(s), len(p.in))]), s)
}

func (p *parser) take(s string) bool {
	if !p.looking(s) {
		return false
	}
	p.at += len([]rune(s))
	return true
}

func (p *parser) emit(i inst) int {
	p.re.prog = append(p.re.prog, i)
	return len(p.re.prog) - 1
}

// insert puts an instruction before those from at on, all of which only lead among themselves.
func (p *parser) insert(at int, in inst) {
	p.re.prog = slices.Insert(p.re.prog, at, in)
	for i := at + 1; i < len(p.re.prog); i++ {
		p.re.prog[i].shift(1)
	}
}

func (in *inst) shift(by int) {
	switch in.op {
	case opSplit:
		in.x += by
		in.y += by
	case opJump, opAhead, opNotAhead, opAtomic:
		in.x += by
	case opSet, opStar, opStarOnly, opMatch:
	}
}

// alternatives compiles a|b|c up to a ) or the end, and says whether it can match nothing.
func (p *parser) alternatives(depth int) (bool, error) {
	if depth > maxGroups {
		return false, p.odd("groups too deep")
	}
	nullable := false
	var ends []int
	for {
		from := len(p.re.prog)
		empty, err := p.sequence(depth)
		if err != nil {
			return false, err
		}
		nullable = nullable || empty
		if !p.take("|") {
			break
		}
		p.insert(from, inst{op: opSplit, x: from + 1})
		ends = append(ends, p.emit(inst{op: opJump}))
		p.re.prog[from].y = len(p.re.prog)
	}
	for _, e := range ends {
		p.re.prog[e].x = len(p.re.prog)
	}
	return nullable, nil
}

func (p *parser) sequence(depth int) (bool, error) {
	nullable := true
	for p.more() && p.in[p.at] != '|' && p.in[p.at] != ')' {
		from := len(p.re.prog)
		empty, err := p.atom(depth)
		if err != nil {
			return false, err
		}
		if empty, err = p.quantifier(from, empty); err != nil {
			return false, err
		}
		nullable = nullable && empty
		if len(p.re.prog) > maxProgram {
			return false, p.odd("too much repetition")
		}
	}
	return nullable, nil
}

func (p *parser) atom(depth int) (bool, error) {
	fold := p.fold
	defer func() { p.fold = fold }()
	switch {
	case p.take("(?:"):
	case p.take("(?i:"):
		p.fold = true
	case p.take("(?="):
		return true, p.around(opAhead, depth)
	case p.take("(?!"):
		return true, p.around(opNotAhead, depth)
	case p.take("(?>"):
		return p.atomic(depth)
	case p.looking("(?"):
		return false, p.odd("a group of an unknown kind")
	case p.take("("):
	default:
		s, err := p.one()
		if err != nil {
			return false, err
		}
		p.emit(inst{op: opSet, set: p.set(s)})
		return false, nil
	}
	empty, err := p.alternatives(depth + 1)
	if err == nil && !p.take(")") {
		err = p.odd("a group without its end")
	}
	return empty, err
}

func (p *parser) around(o op, depth int) error {
	at := p.emit(inst{op: o})
	if _, err := p.alternatives(depth + 1); err != nil {
		return err
	}
	if !p.take(")") {
		return p.odd("a group without its end")
	}
	p.emit(inst{op: opMatch})
	p.re.prog[at].x = len(p.re.prog)
	return nil
}

func (p *parser) atomic(depth int) (bool, error) {
	at := p.emit(inst{op: opAtomic})
	empty, err := p.alternatives(depth + 1)
	if err != nil {
		return false, err
	}
	if !p.take(")") {
		return false, p.odd("a group without its end")
	}
	p.emit(inst{op: opMatch})
	p.re.prog[at].x = len(p.re.prog)
	return empty, nil
}

// quantifier repeats what was compiled from from on.
func (p *parser) quantifier(from int, empty bool) (bool, error) {
	if !p.more() {
		return empty, nil
	}
	least, most, braces := 1, 1, false
	switch c := p.in[p.at]; c {
	case '?':
		least, most = 0, 1
	case '*':
		least, most = 0, -1
	case '+':
		least, most = 1, -1
	case '{':
		n, err := p.braces(&least, &most)
		if err != nil {
			return false, err
		}
		braces = true
		p.at += n - 1
	default:
		return empty, nil
	}
	p.at++
	if len(p.re.prog) == from || empty {
		return false, p.odd("a repetition of what can be empty")
	}
	lazy, only := false, false
	if p.more() {
		switch c := p.in[p.at]; {
		case c == '?' && !braces:
			lazy = true
			p.at++
		case c == '+' && !braces:
			only = true
			p.at++
		case c == '?' || c == '*' || c == '+' || c == '{':
			return false, p.odd("a repetition of a repetition")
		}
	}
	return least == 0, p.repeat(from, least, most, lazy, only)
}

func (p *parser) braces(least, most *int) (int, error) {
	end := slices.Index(p.in[p.at:], '}')
	if end < 0 {
		return 0, p.odd("a { without its end")
	}
	text := string(p.in[p.at+1 : p.at+end])
	var n int
	if k, err := fmt.Sscanf(text, "%d,%d", least, most); k == 2 && err == nil && fmt.Sprintf("%d,%d", *least, *most) == text {
		n = *most
	} else if k, err := fmt.Sscanf(text, "%d", least); k == 1 && err == nil && fmt.Sprintf("%d", *least) == text {
		*most, n = *least, *least
	} else if k, err := fmt.Sscanf(text, "%d,", least); k == 1 && err == nil && fmt.Sprintf("%d,", *least) == text {
		*most, n = -1, *least
	} else {
		return 0, p.odd("a { that is no repetition")
	}
	if *least < 0 || *most == 0 || *most > 0 && *least > *most || n > 1000 {
		return 0, p.odd("a repetition out of bounds")
	}
	return end + 1, nil
}

func (p *parser) repeat(from, least, most int, lazy, only bool) error {
	body := slices.Clone(p.re.prog[from:])
	if len(body)*max(least, most, 1) > maxProgram {
		return p.odd("too much repetition")
	}
	p.re.prog = p.re.prog[:from]
	if only {
		p.emit(inst{op: opAtomic})
	}
	add := func() {
		by := len(p.re.prog) - from
		for _, in := range body {
			in.shift(by)
			p.emit(in)
		}
	}
	for range least {
		add()
	}
	split := func(x, y int) inst {
		if lazy {
			x, y = y, x
		}
		return inst{op: opSplit, x: x, y: y}
	}
	switch {
	case most < 0 && len(body) == 1 && body[0].op == opSet && !lazy:
		o := opStar
		if only {
			o = opStarOnly
		}
		p.emit(inst{op: o, set: body[0].set})
	case most < 0:
		at := p.emit(inst{})
		add()
		p.emit(inst{op: opJump, x: at})
		p.re.prog[at] = split(at+1, len(p.re.prog))
	default:
		var splits []int
		for range most - least {
			splits = append(splits, p.emit(inst{}))
			add()
		}
		for _, s := range splits {
			p.re.prog[s] = split(s+1, len(p.re.prog))
		}
	}
	if only {
		p.emit(inst{op: opMatch})
		p.re.prog[from].x = len(p.re.prog)
	}
	return nil
}

func (p *parser) set(s set) int {
	p.re.sets = append(p.re.sets, s)
	return len(p.re.sets) - 1
}
