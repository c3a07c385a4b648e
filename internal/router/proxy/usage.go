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
	c.each(tail, func(kept *int, n int) { *kept = n })
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

// each calls f with every number of tokens that the text says, and which of c it is.
func (c *counts) each(text []byte, f func(kept *int, n int)) {
	const mark = `_tokens":` // an underline is rare, so that it is soon found or not there
	for {
		at := bytes.Index(text, []byte(mark))
		if at < 0 {
			return
		}
		name := text[:at]
		text = text[at+len(mark):]
		switch {
		case bytes.HasSuffix(name, []byte(`"prompt`)), bytes.HasSuffix(name, []byte(`"input`)):
			f(&c.prompt, leading(text))
		case bytes.HasSuffix(name, []byte(`"completion`)), bytes.HasSuffix(name, []byte(`"output`)):
			f(&c.completion, leading(text))
		case bytes.HasSuffix(name, []byte(`"cached`)):
			f(&c.cached, leading(text))
		case bytes.HasSuffix(name, []byte(`"cache_read_input`)):
			f(&c.read, leading(text))
		case bytes.HasSuffix(name, []byte(`"cache_creation_input`)):
			f(&c.created, leading(text))
		}
	}
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
	l.sum.each(text, func(kept *int, n int) {
		if n >= 0 {
			*kept = max(*kept, 0) + n
		}
	})
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
