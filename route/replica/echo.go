package replica

import "time"

// echo measures how long a word takes to come to others, by how long own ones take to come back.
type echo struct {
	kind      byte // of the message that is waited for; 0 for none
	number    uint64
	at        time.Time // when it was sent
	mean, off time.Duration
}

// echoLost is after how long a message is not waited for any more.
const echoLost = time.Second

// sent notes a message of this router's.
func (e *echo) sent(msg []byte, now time.Time) {
	if e.kind != 0 && now.Sub(e.at) < echoLost {
		return
	}
	if h, _, err := readHeader(msg); err == nil {
		e.kind, e.number, e.at = h.kind, h.number, now
	}
}

// heard notes one that has come back, and reports whether that tells anything.
func (e *echo) heard(h header, now time.Time) bool {
	if e.kind == 0 || h.kind != e.kind || h.number != e.number {
		return false
	}
	e.kind = 0
	took := now.Sub(e.at)
	if took < 0 || took >= echoLost {
		return false
	}
	if e.mean == 0 {
		e.mean, e.off = took, took/4
		return true
	}
	// As TCP does for its timers (RFC 6298).
	e.off += ((took - e.mean).Abs() - e.off) / 4
	e.mean += (took - e.mean) / 8
	return true
}

// delay is after how long nearly each word has come, and before which nearly none has.
func (e *echo) delay() (most, least time.Duration) {
	return e.mean + 4*e.off, max(e.mean-4*e.off, 0)
}
