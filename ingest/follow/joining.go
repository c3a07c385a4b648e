package follow

import "time"

// This file is how a snapshot of an engine's takes the place of what the index has. It is
// the engine's word of all that it held after one of its batches, and names the process; the
// wire goes on from there if it has the same process and comes to that batch.

// Wanting reports whether a snapshot may have what replays do not: what is lost, the name of
// the process, and where there was one, or can be none, what it did not bring.
func (r *Rank) Wanting(replayed bool) bool {
	return !r.known || r.wire.process == 0 || r.lack != nothing && !r.wire.given || !r.wire.joins.IsZero() || replayed && r.awaits()
}

// Snapshot takes the snapshot that the engine gave to the recovery which is under way: what
// its process held after the batch with the number (the largest there is: before its first).
// It reports false, and changes nothing, if the wire does not go on from there: it is older
// than what came, of another process than the wire is, or of one that is not named.
func (r *Rank) Snapshot(s *Step, b *Batch) bool {
	w, id := &r.wire, b.Number+1
	same := w.process == b.Process
	switch {
	case r.rec.number == 0, b.Process == 0:
		return false
	case w.any && (!same || id < w.last), r.known && same && id < r.last && w.joins.IsZero():
		return false
	}
	e := Effect{Kind: Commit, Ref: b.Ref}
	if w.process != 0 && !same {
		e.Sign = Named
	}
	r.dismiss(s, Overflow) // whose it was does not matter any more
	if !same {
		r.begin(r.incarnation + 1)
	}
	*w = wire{process: b.Process, proven: true, looked: w.looked, any: w.any, last: w.last, verify: w.verify}
	r.known, r.first, r.last = true, 0, id
	r.lack, r.why = nothing, nil
	if !w.any || w.last != id {
		w.joins, r.why = s.Now, errJoins
	}
	r.era++
	s.add(e)
	r.drain(s)
	return true
}

// join notes that the wire, which is of the snapshot's process, has come to the event. One
// that stays behind the snapshot for long never reaches it: another one is asked for.
func (r *Rank) join(s *Step, id uint64) {
	switch w := &r.wire; {
	case w.joins.IsZero():
	case id >= r.last:
		w.joins = time.Time{}
		r.retry.Progress()
	case s.Now.Sub(w.joins) >= s.RecoverMax:
		r.ask(s, Retry)
	}
}
