package proxy

import "bytes"

// events counts the events of a stream as its bytes come. Comments are none, nor are events that are called pings:
// they keep connections open, and say nothing of the request. Where the events are of an answer, those beyond
// maxHollow in a row that carry nothing of it are none either.
type events struct {
	answer     bool     // they are of an answer whose form is known: see carries
	head       [12]byte // how the line begun begins
	size       int      // how much of that there is
	ping, said bool     // what the event begun has
	n          int      // that ended and were not taken

	// hollow is how many carried nothing in a row. Behind one that carries something it is below 0,
	// and as many are not looked at: a look costs as much as all else here.
	hollow int
	look   carries // at the event begun
}

// maxHollow is how many events in a row may carry nothing of an answer and count: at least, and, since not each
// is looked at, twice as many at most.
const maxHollow = 64

// see takes a part of the stream, and reports whether anything but comments and pings is in it.
func (e *events) see(part []byte) (said bool) {
	for len(part) > 0 {
		at := bytes.IndexByte(part, '\n')
		line := part
		if at >= 0 {
			line, part = part[:at], part[at+1:]
		} else {
			part = nil
		}
		e.size += copy(e.head[e.size:], line)
		head := bytes.TrimRight(e.head[:e.size], "\r")
		switch name, named := bytes.CutPrefix(head, []byte("event:")); {
		case len(head) == 0 && at >= 0:
			if e.said {
				e.ended()
			}
			e.ping, e.said = false, false
		case len(head) == 0 || head[0] == ':' || e.ping:
		case at >= 0 && named && string(bytes.TrimSpace(name)) == "ping":
			e.ping = true
		case at >= 0 || head[0] != 'e': // else it may yet be a ping's
			e.said = true
			said = e.counts(line) || said
		}
		if at >= 0 {
			e.size = 0
		}
	}
	return said
}

// counts takes more of an event, and reports whether that has said something by now.
func (e *events) counts(line []byte) bool {
	return !e.answer || e.hollow < 0 || e.look.see(line) || e.hollow < maxHollow
}

func (e *events) ended() {
	switch {
	case e.look.something:
		e.hollow = -maxHollow
	case !e.answer:
	case e.hollow < maxHollow:
		e.hollow++
	default:
		e.n--
	}
	e.look = carries{}
	e.n++
}

// take returns how many events have ended since it was last asked.
func (e *events) take() (n int) {
	n, e.n = e.n, 0
	return n
}
