package query

import (
	"math"
	"strconv"
)

// digits takes decimal digits without a leading zero. ok is false, and nothing
// taken, if there is none, a leading zero, or the value is beyond limit.
func (s *scanner) digits(limit uint64) (v uint64, ok bool) {
	b, i := s.body, s.pos
	for i < len(b) && b[i]-'0' <= 9 {
		d := uint64(b[i] - '0')
		if i-s.pos >= 19 && (v > math.MaxUint64/10 || v*10 > math.MaxUint64-d) {
			return 0, false
		}
		v = v*10 + d
		i++
	}
	if i == s.pos || v > limit || b[s.pos] == '0' && i-s.pos > 1 {
		return 0, false
	}
	s.pos = i
	return v, true
}

// uint takes a whole number of at most limit. The field is written by name, so
// that elements of arrays cost nothing unless they are wrong.
func (s *scanner) uint(limit uint64) (v uint64, reason string) {
	start := s.pos
	v, ok := s.digits(limit)
	if ok && (s.pos == len(s.body) || !isNumberByte(s.body[s.pos])) {
		return v, ""
	}
	s.pos = start
	return 0, s.notUint()
}

func isNumberByte(c byte) bool { return c == '.' || c == 'e' || c == 'E' }

// notUint says why the value at the position is no whole number within its
// limit. With reasonMalformedJSON the position is then where the number breaks.
func (s *scanner) notUint() string {
	if s.pos >= len(s.body) || s.body[s.pos] != '-' && s.body[s.pos]-'0' > 9 {
		return reasonWrongType
	}
	negative := s.body[s.pos] == '-'
	if negative {
		s.pos++
	}
	start := s.pos
	if !s.skipDigits() || s.body[start] == '0' && s.pos > start+1 {
		s.pos = start
		return reasonMalformedJSON
	}
	integer := true
	if s.pos < len(s.body) && s.body[s.pos] == '.' {
		s.pos++
		integer = false
		if !s.skipDigits() {
			return reasonMalformedJSON
		}
	}
	if s.pos < len(s.body) && (s.body[s.pos] == 'e' || s.body[s.pos] == 'E') {
		s.pos++
		integer = false
		if s.pos < len(s.body) && (s.body[s.pos] == '+' || s.body[s.pos] == '-') {
			s.pos++
		}
		if !s.skipDigits() {
			return reasonMalformedJSON
		}
	}
	switch {
	case negative:
		return reasonNegative
	case !integer:
		return reasonNotInteger
	}
	return reasonOutOfRange
}

// skipDigits takes digits and reports whether there was one.
func (s *scanner) skipDigits() bool {
	start := s.pos
	for s.pos < len(s.body) && s.body[s.pos]-'0' <= 9 {
		s.pos++
	}
	return s.pos > start
}

// number takes a whole number in lo … hi.
func (s *scanner) number(field string, lo, hi uint64) (uint64, *Problem) {
	s.next()
	v, reason := s.uint(hi)
	if reason == "" && v < lo {
		reason = reasonOutOfRange
	}
	if reason != "" {
		return 0, s.numberProblem(field, reason, "a whole number", lo, hi)
	}
	return v, nil
}

func (s *scanner) numberProblem(field, reason, want string, lo, hi uint64) *Problem {
	switch reason {
	case reasonMalformedJSON:
		return s.malformed("a digit")
	case reasonWrongType:
		return s.wrongType(field, want)
	}
	return bad(field, reason, "must be "+want+" between "+
		strconv.FormatUint(lo, 10)+" and "+strconv.FormatUint(hi, 10))
}

// openArray takes the beginning of an array and reports whether it is empty,
// in which case it takes the end, too.
func (s *scanner) openArray(field string) (empty bool, p *Problem) {
	if s.next() != '[' {
		return false, s.wrongType(field, "an array")
	}
	s.pos++
	if s.next() == ']' {
		s.pos++
		return true, nil
	}
	return false, nil
}

// afterElement takes what follows an element and reports whether it ends the
// array.
func (s *scanner) afterElement() (end bool, p *Problem) {
	switch s.next() {
	case ',':
		s.pos++
		return false, nil
	case ']':
		s.pos++
		return true, nil
	}
	return false, s.malformed(`"," or "]"`)
}

func tooMany(field string, limit int) *Problem {
	return bad(field, reasonTooMany, "more than "+strconv.Itoa(limit)+" elements, the limit of this server")
}

// tokens appends an array of u32 to dst, which is empty.
func (s *scanner) tokens(field string, dst []uint32, limit int) ([]uint32, *Problem) {
	end, p := s.openArray(field)
	for !end && p == nil {
		dst = s.plainTokens(dst, limit)
		if len(dst) >= limit {
			return dst, tooMany(field, limit)
		}
		s.next()
		v, reason := s.uint(math.MaxUint32)
		if reason != "" {
			return dst, s.elementProblem(field, len(dst), reason, "a whole number", math.MaxUint32)
		}
		dst = append(dst, uint32(v))
		end, p = s.afterElement()
	}
	return dst, p
}

// plainTokens takes elements as long as they are plain: one to nine digits, a
// comma and at most one space. Most elements of most bodies are; the rest is
// for the caller, who finds the position at an element.
func (s *scanner) plainTokens(dst []uint32, limit int) []uint32 {
	b, pos := s.body, s.pos
	for len(dst) < limit {
		i, v := pos, uint32(0)
		for i < len(b) && b[i]-'0' <= 9 {
			v = v*10 + uint32(b[i]-'0')
			i++
		}
		n := i - pos
		if n == 0 || n > 9 || i == len(b) || b[i] != ',' || n > 1 && b[pos] == '0' {
			break
		}
		dst = append(dst, v)
		pos = i + 1
		if pos < len(b) && b[pos] == ' ' {
			pos++
		}
	}
	s.pos = pos
	return dst
}

// hashes appends an array of u64 to dst, which is empty. Elements are numbers
// or decimal texts (for callers whose numbers have 53 bits).
func (s *scanner) hashes(field string, dst []uint64, limit int) ([]uint64, *Problem) {
	end, p := s.openArray(field)
	for !end && p == nil {
		dst = s.plainHashes(dst, limit)
		if len(dst) >= limit {
			return dst, tooMany(field, limit)
		}
		var v uint64
		var reason string
		if s.next() == '"' {
			v, reason = s.quoted()
		} else {
			v, reason = s.uint(math.MaxUint64)
		}
		if reason != "" {
			return dst, s.elementProblem(field, len(dst), reason,
				"a whole number (or one as a decimal text)", math.MaxUint64)
		}
		dst = append(dst, v)
		end, p = s.afterElement()
	}
	return dst, p
}

// plainHashes is plainTokens for numbers of one to twenty digits.
func (s *scanner) plainHashes(dst []uint64, limit int) []uint64 {
	const tenth, last = math.MaxUint64 / 10, math.MaxUint64 % 10
	b, pos := s.body, s.pos
	for len(dst) < limit {
		i, v, before := pos, uint64(0), uint64(0)
		for i < len(b) && b[i]-'0' <= 9 {
			v, before = v*10+uint64(b[i]-'0'), v
			i++
		}
		n := i - pos
		if n == 0 || n > 20 || i == len(b) || b[i] != ',' || n > 1 && b[pos] == '0' ||
			n == 20 && (before > tenth || before == tenth && uint64(b[i-1]-'0') > last) {
			break
		}
		dst = append(dst, v)
		pos = i + 1
		if pos < len(b) && b[pos] == ' ' {
			pos++
		}
	}
	s.pos = pos
	return dst
}

// quoted takes a text that is a whole number as JSON writes it.
func (s *scanner) quoted() (uint64, string) {
	text, p := s.str("")
	if p != nil {
		return 0, reasonMalformedJSON
	}
	inner := scanner{body: text}
	v, reason := inner.uint(math.MaxUint64)
	switch {
	case inner.pos < len(text), reason == reasonWrongType, reason == reasonMalformedJSON:
		return 0, reasonNotInteger // some other text
	}
	return v, reason
}

func (s *scanner) elementProblem(field string, i int, reason, want string, hi uint64) *Problem {
	return s.numberProblem(field+"["+strconv.Itoa(i)+"]", reason, want, 0, hi)
}
