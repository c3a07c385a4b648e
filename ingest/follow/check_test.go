package follow

import "fmt"

// check verifies what the states promise of the fields.
func (r *Rank) check() error {
	bytes := 0
	for i := range r.held {
		bytes += r.held[i].size()
		if i > 0 && r.held[i].from() < r.held[i-1].from() {
			return fmt.Errorf("what is held is in no order: %+v", r.held)
		}
	}
	st := r.Status()
	switch {
	case bytes != r.bytes:
		return fmt.Errorf("%d bytes are held, not %d", bytes, r.bytes)
	case len(r.held) > 0 && r.follows(r.held[0].from()):
		return fmt.Errorf("event %d is held, after %d", r.held[0].from(), r.last)
	case st.State == Departed && (len(r.held) > 0 || r.rec.number != 0 || st.Incomplete):
		return fmt.Errorf("a rank that left: %+v", st)
	case st.State == Contested && (len(r.held) > 0 || r.rec.number != 0):
		return fmt.Errorf("a rank of two processes: %+v", st)
	case r.lack == room && r.rec.number != 0:
		return fmt.Errorf("a rank that waits for room recovers: %+v", st)
	case st.State == Unknown && (r.known || r.last > 0):
		return fmt.Errorf("an unknown rank: %+v", st)
	case (len(r.held) > 0 || r.wire.doubt != nil) && r.wire.proven && r.wire.unread:
		return fmt.Errorf("a batch waits, and nothing for what the one before has: %+v", st)
	case r.wire.doubt != nil && r.rec.number == 0:
		return fmt.Errorf("nobody is asked about a batch in doubt: %+v", st)
	case st.State != Away && st.Incomplete != (st.State == Recovering || st.State == Stale || st.State == Lossy || st.State == Truncated || st.State == Contested):
		return fmt.Errorf("incomplete %v in state %v", st.Incomplete, st.State)
	case st.Incomplete && st.State != Recovering && st.Why == nil:
		return fmt.Errorf("no reason is given for %+v", st)
	case (st.State == Following || st.State == Waiting || st.State == Unknown) && r.spoilt == not && st.Why != nil:
		return fmt.Errorf("an error that has ended: %+v", st)
	case len(r.ended) > maxEnded:
		return fmt.Errorf("%d ended incarnations are remembered", len(r.ended))
	}
	return nil
}
