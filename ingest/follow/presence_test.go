package follow

import (
	"math"
	"testing"
	"time"
)

// A rank that left, and whose events are in another stream by then, is waited for as many
// looks at that one as it takes to be sure, however often the former was looked at.
func TestWhoLeftComesBackInAnotherStream(t *testing.T) {
	at := time.Unix(1_000_000, 0)
	r := New(1)
	r.heard = true
	s := Step{Now: at, Created: at, Looks: 1000}
	r.Leave(&s, Departure{At: at, Seq: 50, Created: at})
	s = Step{Now: at, Created: at.Add(time.Hour)}
	r.Voided(&s, math.MaxUint64)
	if r.after(&s, 1) {
		t.Error("the new stream was not looked at, and what is in it is from after")
	}
	if s.Looks = 2; !r.after(&s, 1) {
		t.Error("what is in a stream that was made after the rank left is from before")
	}
}
