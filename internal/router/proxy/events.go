package proxy

import "bytes"

// events counts the events of a stream as its bytes come. Comments are none, nor are events that are called pings:
// they keep connections open, and say nothing of the request.
type events struct {
	head       [12]byte // how the line begun begins
	size       int      // how much of that there is
	ping, said bool     // what the event begun has
	n          int      // that ended and were not taken
}

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
				e.n++
			}
			e.ping, e.said = false, false
		case len(head) == 0 || head[0] == ':' || e.ping:
		case at >= 0 && named && string(bytes.TrimSpace(name)) == "ping":
			e.ping = true
		case at >= 0 || head[0] != 'e': // else it may yet be a ping's
			e.said, said = true, true
		}
		if at >= 0 {
			e.size = 0
		}
	}
	return said
}

// take returns how many events have ended since it was last asked.
func (e *events) take() (n int) {
	n, e.n = e.n, 0
	return n
}
