package publish

import (
	"math/rand/v2"
	"time"
)

// congestion says how many messages may be in flight, and how long an acknowledgement is
// waited for before a copy is sent.
//
// One that is late was lost with a server that ended, or waits at one that has more to do
// than it can. Nobody says which: the first wants a copy soon, and the second dies of copies.
// So both change with what is seen, as TCP's do: copies come after twice as long each time,
// what acknowledgements take of late is waited for and more (RFC 6298), and after a failure
// one message is in flight, then one more for each that lands.
type congestion struct {
	window, full  int           // messages in flight: as many as may be now, and at most
	usual, varies time.Duration // what acknowledgements take, and by how much that differs
}

// leastPatience is how long the oldest message waits for its acknowledgement, at least,
// before a copy of it is sent.
const leastPatience = 500 * time.Millisecond

// patience returns how long an acknowledgement is waited for after so many copies; less by
// a part that is left to chance, for what failed together would come back together.
func (c *congestion) patience(copies int, most time.Duration) time.Duration {
	d := max(leastPatience, c.usual+4*c.varies)
	for range copies {
		d = min(2*d, most)
	}
	d = min(d, most)
	return d - rand.N(d/4+1)
}

// failed notes that a message failed, or is late.
func (c *congestion) failed() { c.window = 1 }

// landed notes that one was acknowledged: so long after the attempt, and with so many left in flight.
func (c *congestion) landed(took time.Duration, left int) {
	if c.usual == 0 {
		c.usual, c.varies = took, took/2
	}
	c.varies += ((c.usual - took).Abs() - c.varies) / 4
	c.usual += (took - c.usual) / 8
	if left < c.window { // else nothing new is sent yet, and it is not known what would become of more
		c.window = min(c.window+1, c.full)
	}
}
