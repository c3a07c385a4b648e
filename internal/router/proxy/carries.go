package proxy

import "bytes"

// carries looks for something of an answer in one event of its stream, as the bytes come: a text that is not empty,
// token ids, usage, or why it has stopped. An engine may well send events without, as for a role or while it reads a
// tool's call; one that sends only those gives nothing. It is no parser: what is not JSON carries nothing.
type carries struct {
	something bool
	at        inJSON
	name      [16]byte // how the last string begins
	size      int      // how long it is
}

// inJSON is where in an event's JSON the next byte is.
type inJSON uint8

const (
	outside inJSON = iota // anything but what follows
	inString
	escaped
	behindString // it is a key if a colon comes
	behindText   // the value of a key that may have a text
	behindList   // or of one that has something if it is not empty
	firstOfText
	firstOfList
)

// see takes a part of the event, and reports whether it has carried something by now.
func (c *carries) see(part []byte) bool {
	for i := 0; i < len(part) && !c.something; i++ {
		b := part[i]
		if (b == ' ' || b == '\t' || b == '\r') && c.at != inString && c.at != escaped && c.at != firstOfText {
			continue
		}
		switch c.at {
		case inString, escaped:
			switch {
			case c.at == escaped:
				c.at = inString
			case b == '"':
				c.at = behindString
				continue
			case b == '\\':
				c.at = escaped
			}
			if c.size < len(c.name) {
				c.name[c.size] = b
			}
			c.size++
			continue
		case firstOfText:
			c.something, c.at = b != '"', outside
			continue
		case firstOfList:
			c.something = b != ']' && b != '}'
		case behindString:
			if b == ':' {
				c.at = c.key()
				continue
			}
		case behindText:
			if b == '"' {
				c.at = firstOfText
				continue
			}
		case behindList:
			if b == '[' || b == '{' {
				c.at = firstOfList
				continue
			}
		case outside:
		}
		if c.at = outside; b == '"' {
			c.at, c.size = inString, 0
		}
	}
	return c.something
}

// key says what may stand behind the string that was seen, as a key.
func (c *carries) key() inJSON {
	name := c.name[:min(c.size, len(c.name))]
	switch {
	case bytes.HasPrefix(name, []byte("reasoning")):
		return behindText
	case c.size > len(c.name):
		return outside
	}
	switch string(name) {
	case "content", "text", "delta", "arguments", "partial_json", "thinking", "token", "finish_reason", "stop_reason",
		"refusal", "signature", "data", "transcript":
		return behindText
	case "token_ids", "usage":
		return behindList
	}
	return outside
}
