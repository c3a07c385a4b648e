package tokenize

import (
	"errors"
	"slices"
)

// regexp is a pattern of the kind that tokenizers' files have, with lookahead, as a program
// for a machine that tries one way after the other. It takes Unicode's categories from the
// judges' tables, which no library for Go has. What it does not know it does not compile.
type regexp struct {
	prog []inst
	sets []set
}

type op uint8

const (
	opSet      op = iota // one character of a set
	opStar               // as many of a set as there are, fewer if it must be (greedy)
	opStarOnly           // as many of a set as there are, never fewer
	opSplit              // go on at x, or else at y
	opJump
	opAhead    // what follows matches the program at pc+1, up to its opMatch; goes on at x
	opNotAhead // the same, does not match
	opAtomic   // takes what the program at pc+1 matches first; goes on at x
	opMatch
)

type inst struct {
	op  op
	x   int
	y   int
	set int
}

// set is a set of characters.
type set struct {
	negated bool
	ranges  []rune // pairs
	cats    uint32 // general categories
	space   bool   // \s
	han     bool
	subsets []set // members as well
	and     *set  // only what is in it too
}

func (s *set) has(t *unicodeTables, r rune) bool {
	in := false
	for i := 0; i < len(s.ranges) && !in; i += 2 {
		in = r >= s.ranges[i] && r <= s.ranges[i+1]
	}
	if !in && (s.cats != 0 || s.space || s.han) {
		c := t.category.at(r)
		in = s.cats>>(c&catMask)&1 != 0 || s.han && c&catHan != 0 || s.space && t.classes[c]&classSpace != 0
	}
	for i := 0; i < len(s.subsets) && !in; i++ {
		in = s.subsets[i].has(t, r)
	}
	if in && s.and != nil {
		in = s.and.has(t, r)
	}
	return in != s.negated
}

// stepsPerByte bounds how often a pattern may try: a file can hold one that takes
// exponential time. Those of real models take fewer than 40.
const stepsPerByte = 300

var errSteps = errors.New("tokenize: the tokenizer's pattern takes too long on this text")

// matcher is the memory of one machine.
type matcher struct {
	stack []frame
	steps int
	err   error
}

// frame is a way not yet tried: at pc with any end from low to high that is the end of a character.
type frame struct{ pc, low, high int }

// next finds the first match at or after from. A pattern matches no empty text: compile sees to it.
func (re *regexp) next(w *work, b []byte, from int) (int, int) {
	m := &w.reg
	t := w.t
	for i := from; i < len(b); {
		if end := re.run(t, m, b, 0, i); end >= 0 {
			return i, end
		}
		if m.err != nil {
			break
		}
		_, n := runeAt(b, i)
		i += n
	}
	return len(b), len(b)
}

// run is the end of the match of the program at pc, or -1.
func (re *regexp) run(t *unicodeTables, m *matcher, b []byte, pc, at int) int {
	base := len(m.stack)
	defer func() { m.stack = m.stack[:base] }()
	for {
		if m.steps--; m.steps < 0 {
			m.err = errSteps
			return -1
		}
		in := &re.prog[pc]
		ok := true
		switch in.op {
		case opMatch:
			return at
		case opSet:
			n := re.step(t, in.set, b, at)
			ok = n > 0
			at += n
			pc++
		case opStar, opStarOnly:
			low := at
			for n := re.step(t, in.set, b, at); n > 0; n = re.step(t, in.set, b, at) {
				at += n
				m.steps--
			}
			pc++
			if in.op == opStar && at > low {
				m.stack = append(m.stack, frame{pc, low, lastRune(b, at)})
			}
		case opSplit:
			m.stack = append(m.stack, frame{in.y, at, at})
			pc = in.x
		case opJump:
			pc = in.x
		case opAhead, opNotAhead:
			found := re.run(t, m, b, pc+1, at) >= 0
			ok = found == (in.op == opAhead)
			pc = in.x
		case opAtomic:
			end := re.run(t, m, b, pc+1, at)
			ok = end >= 0
			at, pc = end, in.x
		}
		if ok {
			continue
		}
		if len(m.stack) == base || m.err != nil {
			return -1
		}
		f := &m.stack[len(m.stack)-1]
		pc, at = f.pc, f.high
		if f.high > f.low {
			f.high = lastRune(b, f.high)
		} else {
			m.stack = m.stack[:len(m.stack)-1]
		}
	}
}

func (re *regexp) step(t *unicodeTables, set int, b []byte, at int) int {
	if at >= len(b) {
		return 0
	}
	r, n := runeAt(b, at)
	if !re.sets[set].has(t, r) {
		return 0
	}
	return n
}

func maskOf(names ...string) uint32 {
	m := uint32(0)
	for i, n := range categoryNames {
		if slices.ContainsFunc(names, func(s string) bool { return s == n || s == n[:1] }) {
			m |= 1 << i
		}
	}
	return m
}
