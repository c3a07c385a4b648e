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

// usageIn reads an answer's end, also by the names that /v1/responses and /v1/messages
// have: the last that is said. Text that was generated cannot look like it: its quotes are
// escaped.
func usageIn(tail []byte) usage {
	c := noCounts()
	for len(tail) > 0 {
		var kept *int
		var n int
		if kept, n, tail = c.next(tail); kept != nil {
			*kept = n
		}
	}
	return c.all()
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

// listed adds what the elements of a list say, as SGLang's /generate answers a list of
// prompts: each has a usage of its own, the first ones long before the end.
type listed struct {
	sum  counts
	rest []byte // that may be the beginning of a number of tokens
}

// longestUsage is longer than what says one number of tokens, or names it.
const longestUsage = 64

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
