package jinja

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// tokenKind says what a token is; operators are told apart by their text.
type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokData
	tokVarBegin
	tokVarEnd
	tokBlockBegin
	tokBlockEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
)

type token struct {
	kind tokenKind
	text string // the name, the operator, the string's value, the data
	num  Value  // of numbers
	line int
}

func (t token) String() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokVarEnd:
		return "}}"
	case tokBlockEnd:
		return "%}"
	case tokInt, tokFloat:
		return "a number"
	}
	return t.text
}

// lexer cuts a template into tokens. Whitespace is taken away here, as trim_blocks,
// lstrip_blocks and the signs beside the delimiters say, so that the parser sees none of it.
type lexer struct {
	src    string
	pos    int
	line   int
	tokens []token
	open   []byte // closing brackets that are awaited: inside of them }} and %} end nothing
	// lineStart: what was read last ended a line, so that whitespace before a block stands
	// at a line's beginning.
	lineStart bool
}

// lex returns the tokens of a template's source.
func lex(src string) ([]token, error) {
	if !validText(src) {
		return nil, &SyntaxError{1, "the template is not UTF-8"}
	}
	src = normalizeNewlines(src)
	// One newline at the end is not part of the template (keep_trailing_newline is off).
	src = strings.TrimSuffix(src, "\n")
	l := &lexer{src: src, line: 1, lineStart: true}
	for l.pos < len(l.src) {
		if err := l.root(); err != nil {
			return nil, err
		}
	}
	l.add(tokEOF, "")
	return l.tokens, nil
}

// SyntaxError says where a template is not Jinja.
type SyntaxError struct {
	Line int
	Msg  string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Msg) }

func (l *lexer) fail(format string, args ...any) error {
	return &SyntaxError{l.line, fmt.Sprintf(format, args...)}
}

func (l *lexer) add(k tokenKind, text string) {
	l.tokens = append(l.tokens, token{kind: k, text: text, line: l.line})
}

// advance moves to end, counting lines.
func (l *lexer) advance(end int) {
	l.line += strings.Count(l.src[l.pos:end], "\n")
	l.lineStart = end > l.pos && l.src[end-1] == '\n'
	l.pos = end
}

// nextTag returns where the next delimiter begins, or -1.
func nextTag(s string, from int) int {
	for {
		i := strings.IndexByte(s[from:], '{')
		if i < 0 || from+i+1 >= len(s) {
			return -1
		}
		from += i
		if c := s[from+1]; c == '{' || c == '%' || c == '#' {
			return from
		}
		from++
	}
}

// root reads text up to the next delimiter, and then what the delimiter begins.
func (l *lexer) root() error {
	tag := nextTag(l.src, l.pos)
	if tag < 0 {
		l.add(tokData, l.src[l.pos:])
		l.advance(len(l.src))
		return nil
	}
	text := l.src[l.pos:tag]
	inner := tag + 2
	var sign byte
	if inner < len(l.src) && (l.src[inner] == '-' || l.src[inner] == '+') {
		sign = l.src[inner]
		inner++
	}
	kind := l.src[tag+1]
	text = l.lstrip(text, sign, kind == '{')
	if text != "" {
		l.add(tokData, text)
	}
	if kind == '%' {
		if body, ok := rawBegin(l.src, inner); ok {
			l.advance(body)
			return l.raw()
		}
	}
	l.advance(inner)
	switch kind {
	case '#':
		return l.comment()
	case '%':
		return l.tag(tokBlockBegin)
	default:
		return l.tag(tokVarBegin)
	}
}

// lstrip takes whitespace from the end of the text before a delimiter.
func (l *lexer) lstrip(text string, sign byte, variable bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, isSpace)
	case sign == '+' || variable:
		return text
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if line > 0 || l.lineStart {
		if strings.TrimLeftFunc(text[line:], isSpace) == "" {
			return text[:line]
		}
	}
	return text
}

func skipSpace(s string, i int) int {
	for i < len(s) {
		r, n := utf8.DecodeRuneInString(s[i:])
		if !isSpace(r) {
			break
		}
		i += n
	}
	return i
}

// rawBegin tells whether what stands behind {% is raw %}, and where its text begins.
func rawBegin(s string, i int) (int, bool) {
	i = skipSpace(s, i)
	if !strings.HasPrefix(s[i:], "raw") {
		return 0, false
	}
	i = skipSpace(s, i+3)
	switch {
	case strings.HasPrefix(s[i:], "-%}"):
		return skipSpace(s, i+3), true
	case strings.HasPrefix(s[i:], "%}"):
		return i + 2, true
	}
	return 0, false
}

// blockEnd returns where what follows a block's end begins, if there is one at i.
func blockEnd(s string, i int) (int, bool) {
	switch {
	case strings.HasPrefix(s[i:], "+%}"):
		return i + 3, true
	case strings.HasPrefix(s[i:], "-%}"):
		return skipSpace(s, i+3), true
	case strings.HasPrefix(s[i:], "%}"):
		if i += 2; i < len(s) && s[i] == '\n' {
			i++
		}
		return i, true
	}
	return 0, false
}

// raw reads text up to {% endraw %}.
func (l *lexer) raw() error {
	for at := l.pos; ; at++ {
		i := strings.Index(l.src[at:], "{%")
		if i < 0 {
			if l.pos == len(l.src) {
				return nil
			}
			return l.fail("missing end of raw directive")
		}
		at += i
		inner := at + 2
		var sign byte
		if inner < len(l.src) && (l.src[inner] == '-' || l.src[inner] == '+') {
			sign = l.src[inner]
			inner++
		}
		inner = skipSpace(l.src, inner)
		if !strings.HasPrefix(l.src[inner:], "endraw") {
			continue
		}
		end, ok := blockEnd(l.src, skipSpace(l.src, inner+6))
		if !ok {
			continue
		}
		if text := l.lstrip(l.src[l.pos:at], sign, false); text != "" {
			l.add(tokData, text)
		}
		l.advance(end)
		return nil
	}
}

func (l *lexer) comment() error {
	i := strings.Index(l.src[l.pos:], "#}")
	if i < 0 {
		if l.pos == len(l.src) {
			return nil
		}
		return l.fail("missing end of comment tag")
	}
	end := l.pos + i + 2
	switch {
	case i > 0 && l.src[end-3] == '-':
		end = skipSpace(l.src, end)
	case i > 0 && l.src[end-3] == '+':
	case end < len(l.src) && l.src[end] == '\n':
		end++
	}
	l.advance(end)
	return nil
}

// tag reads the tokens between a pair of delimiters.
func (l *lexer) tag(begin tokenKind) error {
	l.add(begin, "")
	l.open = l.open[:0]
	for l.pos < len(l.src) {
		if len(l.open) == 0 {
			if begin == tokBlockBegin {
				if end, ok := blockEnd(l.src, l.pos); ok {
					l.add(tokBlockEnd, "")
					l.advance(end)
					return nil
				}
			} else if s := l.src[l.pos:]; strings.HasPrefix(s, "}}") || strings.HasPrefix(s, "-}}") {
				end := l.pos + 2
				if s[0] == '-' {
					end = skipSpace(l.src, end+1)
				}
				l.add(tokVarEnd, "")
				l.advance(end)
				return nil
			}
		}
		if err := l.inTag(); err != nil {
			return err
		}
	}
	return nil // the parser finds the end missing
}

// inTag reads one token, or whitespace.
func (l *lexer) inTag() error {
	c := l.src[l.pos]
	switch {
	case c >= '0' && c <= '9':
		return l.number()
	case isNameByte(c):
		end := l.pos
		for end < len(l.src) && isNameByte(l.src[end]) {
			end++
		}
		if end < len(l.src) && l.src[end] >= utf8.RuneSelf {
			if r, _ := utf8.DecodeRuneInString(l.src[end:]); !isSpace(r) {
				return &UnsupportedError{"names with characters other than ASCII"}
			}
		}
		l.add(tokName, l.src[l.pos:end])
		l.advance(end)
		return nil
	case c == '\'' || c == '"':
		return l.str(c)
	}
	if end := skipSpace(l.src, l.pos); end > l.pos {
		l.advance(end)
		return nil
	}
	if c >= utf8.RuneSelf {
		return &UnsupportedError{"names with characters other than ASCII"}
	}
	return l.operator()
}

func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

func (l *lexer) operator() error {
	op := l.src[l.pos : l.pos+1]
	if l.pos+2 <= len(l.src) {
		switch two := l.src[l.pos : l.pos+2]; two {
		case "//", "**", "==", "!=", ">=", "<=":
			op = two
		}
	}
	switch op {
	case "{":
		l.open = append(l.open, '}')
	case "(":
		l.open = append(l.open, ')')
	case "[":
		l.open = append(l.open, ']')
	case "}", ")", "]":
		if len(l.open) == 0 || l.open[len(l.open)-1] != op[0] {
			return l.fail("unexpected %q", op)
		}
		l.open = l.open[:len(l.open)-1]
	default:
		if !strings.Contains("+-/*%~><=.:|,;//**==!=>=<=", op) || op == "!" {
			return l.fail("unexpected character %q", op)
		}
	}
	l.add(tokOp, op)
	l.advance(l.pos + len(op))
	return nil
}

// digits returns the end of digits that may have single underscores between them.
func digits(s string, i int, ok func(byte) bool) int {
	for i < len(s) {
		if ok(s[i]) {
			i++
		} else if s[i] == '_' && i+1 < len(s) && ok(s[i+1]) && i > 0 && ok(s[i-1]) {
			i += 2
		} else {
			break
		}
	}
	return i
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func (l *lexer) number() error {
	s := l.src
	end := digits(s, l.pos, isDigit)
	float := end
	if float+1 < len(s) && s[float] == '.' && isDigit(s[float+1]) {
		float = digits(s, float+1, isDigit)
	}
	if float < len(s) && s[float]|0x20 == 'e' {
		e := float + 1
		if e < len(s) && (s[e] == '+' || s[e] == '-') {
			e++
		}
		if e < len(s) && isDigit(s[e]) {
			float = digits(s, e, isDigit)
		}
	}
	// A number behind a dot is an index (a.0.1), never the beginning of a fraction.
	if float > end && (l.pos == 0 || s[l.pos-1] != '.') {
		f, err := strconv.ParseFloat(strings.ReplaceAll(s[l.pos:float], "_", ""), 64)
		if err != nil && !isRange(err) {
			return l.fail("%q is not a number", s[l.pos:float])
		}
		l.tokens = append(l.tokens, token{kind: tokFloat, num: Float(f), line: l.line})
		l.advance(float)
		return nil
	}
	base := 10
	if s[l.pos] == '0' {
		end = digits(s, l.pos, func(c byte) bool { return c == '0' })
		if l.pos+1 < len(s) {
			var ok func(byte) bool
			switch s[l.pos+1] | 0x20 {
			case 'b':
				base, ok = 2, func(c byte) bool { return c == '0' || c == '1' }
			case 'o':
				base, ok = 8, func(c byte) bool { return c >= '0' && c <= '7' }
			case 'x':
				base, ok = 16, func(c byte) bool { return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }
			}
			if ok != nil {
				from := l.pos + 2
				if from < len(s) && s[from] == '_' {
					from++
				}
				if e := digits(s, from, ok); e > from {
					end = e
				} else {
					base = 10
				}
			}
		}
	}
	text := strings.ReplaceAll(s[l.pos:end], "_", "")
	if base != 10 {
		text = text[2:]
	}
	if len(text) > maxIntDigits {
		return l.fail("a number of %d digits", len(text))
	}
	n, ok := new(big.Int).SetString(text, base)
	if !ok {
		return l.fail("%q is not a number", text)
	}
	l.tokens = append(l.tokens, token{kind: tokInt, num: bigValue(n), line: l.line})
	l.advance(end)
	return nil
}

// maxIntDigits is Python's limit for integers that are read from text or written as text.
const maxIntDigits = 4300

// str reads a quoted string.
func (l *lexer) str(quote byte) error {
	for i := l.pos + 1; i < len(l.src); i++ {
		switch l.src[i] {
		case '\\':
			i++
		case quote:
			text, err := unescape(l.src[l.pos+1 : i])
			if err != nil {
				if left := (*UnsupportedError)(nil); errors.As(err, &left) {
					return err
				}
				return l.fail("%v", err)
			}
			l.add(tokString, text)
			l.advance(i + 1)
			return nil
		}
	}
	return l.fail("unexpected character %q", quote)
}
