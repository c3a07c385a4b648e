package proxy

import (
	"bytes"
	"strconv"
)

// usage is what an answer's end says of tokens; below 0 is what it does not say.
type usage struct{ prompt, completion, cached int }

// counts are the numbers of tokens that an answer says.
type counts struct {
	usage
	read, created int // what /v1/messages counts apart: of the prompt, cached before and since
}

func noCounts() counts { return counts{usage{-1, -1, -1}, -1, -1} }

// usageIn reads what a whole text of an answer says.
func usageIn(text []byte) usage {
	s := spoken{sum: noCounts()}
	s.see(text)
	return s.sum.all()
}

// all returns what they say together.
func (c *counts) all() usage {
	u := c.usage
	if c.read >= 0 && u.prompt >= 0 {
		u.prompt, u.cached = u.prompt+c.read+max(c.created, 0), c.read
	}
	return u
}

// next returns the first number of tokens that the text says, which of c it is, and what follows it. It
// is none of c where that is nil.
func (c *counts) next(text []byte) (kept *int, n int, rest []byte) {
	const mark = `_tokens":` // an underline is rare, so that it is soon found or not there
	at := bytes.Index(text, []byte(mark))
	if at < 0 {
		return nil, 0, nil
	}
	name := text[:at]
	rest = text[at+len(mark):]
	switch {
	case bytes.HasSuffix(name, []byte(`"prompt`)), bytes.HasSuffix(name, []byte(`"input`)):
		kept = &c.prompt
	case bytes.HasSuffix(name, []byte(`"completion`)), bytes.HasSuffix(name, []byte(`"output`)):
		kept = &c.completion
	case bytes.HasSuffix(name, []byte(`"cached`)):
		kept = &c.cached
	case bytes.HasSuffix(name, []byte(`"cache_read_input`)):
		kept = &c.read
	case bytes.HasSuffix(name, []byte(`"cache_creation_input`)):
		kept = &c.created
	default:
		return nil, 0, rest
	}
	return kept, leading(rest), rest
}

// longestUsage is longer than what says one number of tokens, or names it.
const longestUsage = 64

// spoken is what an answer says of its tokens, also by the names that /v1/responses and /v1/messages
// have, wherever it does: ids of a prompt may follow the usage, and what the client itself has written, and a stream of /v1/messages says
// the prompt's at its beginning. Numbers only grow in a stream, and what an answer repeats of its request must lower none: the
// largest counts. (Text that was generated cannot look like one: its quotes are escaped.) Of what was cached it is the last.
// In an answer that is no stream what lists have does not count: all that was generated is in one, and arguments of
// a tool's call are objects there, with names and numbers of the model's choice. In a stream they are text.
type spoken struct {
	sum  counts
	json lists
	rest [2 * longestUsage]byte // begins with what came last, in which a number of tokens may have begun
	n    int
}

// seeWhole takes a part of an answer that is no stream.
func (s *spoken) seeWhole(chunk []byte) {
	for len(chunk) > 0 {
		var part []byte
		if part, chunk = s.json.skip(chunk); len(part) > 0 {
			s.see(part)
		}
	}
}

// lists tells what of a text of JSON, which comes in parts, is in no list.
type lists struct {
	depth   int
	text    bool // in a text
	escaped bool // behind a backslash
}

// skip returns what is in no list up to where one begins, and what follows after its end.
func (l *lists) skip(part []byte) (outside, rest []byte) {
	within := l.depth > 0
	for i := 0; i < len(part); {
		if l.text {
			end := bytes.IndexByte(part[i:], '"')
			if end < 0 {
				l.escaped = escapes(part[i:], l.escaped)
				break
			}
			l.text, l.escaped = escapes(part[i:i+end], l.escaped), false
			i += end + 1
			continue
		}
		c := part[i]
		if i++; c > ']' || c < '[' && c != '"' {
			continue
		}
		switch {
		case c == '"':
			l.text = true
		case c == '[':
			if l.depth++; l.depth == 1 {
				return part[:i-1], part[i:]
			}
		case c == ']' && l.depth > 0:
			if l.depth--; l.depth == 0 {
				return nil, part[i:]
			}
		}
	}
	if within {
		return nil, nil
	}
	return part, nil
}

// escapes reports whether the end of a part of a text escapes what follows, where its beginning may be escaped.
func escapes(part []byte, escaped bool) bool {
	n := len(part) - len(bytes.TrimRight(part, `\`))
	if n == len(part) && escaped {
		n++
	}
	return n%2 == 1
}

// see takes a part of the answer.
func (s *spoken) see(chunk []byte) {
	joint := append(s.rest[:s.n], chunk[:min(len(chunk), longestUsage)]...)
	s.add(joint)
	s.add(chunk)
	if len(chunk) >= longestUsage {
		joint = chunk
	}
	s.n = copy(s.rest[:], joint[max(0, len(joint)-longestUsage):])
}

func (s *spoken) add(text []byte) {
	for len(text) > 0 {
		var kept *int
		var n int
		switch kept, n, text = s.sum.next(text); {
		case kept == nil || n < 0: // none, or null
		case len(bytes.Trim(text, " 0123456789")) == 0: // or not all of it
		case kept == &s.sum.cached:
			*kept = n
		default:
			*kept = max(*kept, n)
		}
	}
}

// listed adds what the elements of a list say, as SGLang's /generate answers a list of
// prompts: each has a usage of its own, the first ones long before the end.
type listed struct {
	sum  counts
	rest []byte // that may be the beginning of a number of tokens
}

// see takes a part of the answer.
func (l *listed) see(chunk []byte) {
	l.rest = append(l.rest, chunk...)
	cut := bytes.LastIndexAny(l.rest, ",}") + 1 // behind which no number was begun before
	l.add(l.rest[:cut])
	l.rest = append(l.rest[:0], l.rest[max(cut, len(l.rest)-longestUsage):]...)
}

func (l *listed) add(text []byte) {
	for len(text) > 0 {
		var kept *int
		var n int
		if kept, n, text = l.sum.next(text); kept != nil && n >= 0 {
			*kept = max(*kept, 0) + n
		}
	}
}

// end returns what all elements say together.
func (l *listed) end() usage {
	l.add(l.rest)
	l.rest = nil
	return l.sum.all()
}

// leading reads the number that text begins with; below 0 is none.
func leading(text []byte) int {
	digits := bytes.TrimLeft(text, " ")
	end := 0
	for end < len(digits) && digits[end] >= '0' && digits[end] <= '9' {
		end++
	}
	n, err := strconv.ParseUint(string(digits[:end]), 10, 31)
	if err != nil {
		return -1
	}
	return int(n)
}
