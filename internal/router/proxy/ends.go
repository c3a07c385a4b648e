package proxy

import (
	"bytes"

	chats "github.com/kvatlas/kvatlas/chat/api"
)

// endsWell reports whether what ends so is a whole stream of choices: it says that it is done, or why it
// has stopped, and no error before that.
func endsWell(tail []byte) bool {
	done := false
	for text := tail; len(text) > 0; {
		at := bytes.LastIndexByte(text, '\n')
		line := text[at+1:]
		text = text[:max(at, 0)]
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		switch data = bytes.TrimSpace(data); {
		case !ok || len(data) == 0:
		case string(data) == "[DONE]":
			done = true
		case bytes.Contains(data, []byte(`"error"`)) && said(data) == fails:
			return false
		default:
			return done || stopped(tail)
		}
	}
	return done || stopped(tail)
}

// stopped reports whether a choice says why it has stopped. It cannot be text that was generated.
func stopped(text []byte) bool {
	const key = `"finish_reason":`
	for {
		at := bytes.Index(text, []byte(key))
		if at < 0 {
			return false
		}
		if text = bytes.TrimLeft(text[at+len(key):], " "); len(text) > 0 && text[0] == '"' {
			return true
		}
	}
}

// ending is how a stream says that it is whole; nothing of it is set for one that does not.
type ending struct {
	choices bool // by its end: see endsWell
	closing *closing
}

// ending returns how the answer to a request of the path does.
func (j *judge) ending(path string) ending {
	switch {
	case !j.on || !j.events:
		return ending{}
	case j.choices:
		return ending{choices: true}
	}
	return ending{closing: newClosing(path)}
}

// see takes a part of the stream.
func (e *ending) see(part []byte) {
	if e.closing != nil {
		e.closing.see(part)
	}
}

// broken reports whether a stream that was seen, and ends so, is not whole.
func (e *ending) broken(tail []byte) bool {
	return e.choices && !endsWell(tail) || e.closing != nil && !e.closing.well
}

// whole reports whether one that was seen says that it is whole.
func (e *ending) whole(tail []byte) bool {
	return e.choices && endsWell(tail) || e.closing != nil && e.closing.well
}

// closing looks for the event with which a stream of /v1/messages or /v1/responses says that it is
// whole. All of it is looked at, not its end: the last event may hold the whole answer again,
// and have its type first or last.
type closing struct {
	types []string
	tail  []byte // the end of what was seen
	well  bool
}

// maxClosing is longer than what tells such an event.
const maxClosing = 64

// newClosing returns nil for a route whose streams end otherwise.
func newClosing(path string) *closing {
	switch path {
	case chats.PathMessages:
		return &closing{types: []string{"message_stop"}}
	case chats.PathResponses:
		return &closing{types: []string{"response.completed", "response.incomplete"}}
	}
	return nil
}

// see takes a part of the stream.
func (c *closing) see(part []byte) {
	if c.well {
		return
	}
	c.tail = append(c.tail, part...)
	for _, typ := range c.types {
		c.well = c.well || saysType(c.tail, typ)
	}
	// What some engines end all streams with is an end, too.
	c.well = c.well || bytes.Contains(c.tail, []byte("\ndata: [DONE]"))
	c.tail = append(c.tail[:0], c.tail[max(len(c.tail)-maxClosing, 0):]...)
}

// saysType reports whether an event in the text is of the type, by its name or by its data. It
// cannot be text that was generated: there line ends and quotes are escaped.
func saysType(text []byte, typ string) bool {
	for {
		at := bytes.Index(text, []byte(typ))
		if at < 0 {
			return false
		}
		before := bytes.TrimRight(text[:at], " ")
		if text = text[at+len(typ):]; bytes.HasSuffix(before, []byte("\nevent:")) {
			return true
		}
		if before, ok := bytes.CutSuffix(before, []byte(`"`)); ok && bytes.HasPrefix(text, []byte(`"`)) {
			before, ok = bytes.CutSuffix(bytes.TrimRight(before, " "), []byte(":"))
			if ok && bytes.HasSuffix(bytes.TrimRight(before, " "), []byte(`"type"`)) {
				return true
			}
		}
	}
}
