package follow

import (
	"errors"
	"slices"
	"time"
)

// This file is how a rank learns that two processes publish as it: each is a run of
// its engine, and both go on speaking. Which one requests would meet nobody knows, so
// the index holds nothing of the rank until one of them was silent for a lease.

// voice is a run that spoke: from when to when, by the stream's times, or for what
// came without a stream by the replica's.
type voice struct {
	run         uint64
	first, last time.Time
}

// maxVoices bounds the runs that are compared. More processes than that of one rank
// are found two by two.
const maxVoices = 4

// rivals are the runs that were heard within a lease of each other.
type rivals struct {
	voices    []voice // that spoke last of all at the end
	seq       uint64  // the furthest message of the stream
	live      bool    // they came without a stream
	contested bool    // two of them go on speaking
}

var errContested = errors.New("two processes publish as it: give each worker an id of its own")

// overlap returns for how long both spoke.
func (v *voice) overlap(o *voice) time.Duration {
	from, to := v.first, v.last
	if o.first.After(from) {
		from = o.first
	}
	if o.last.Before(to) {
		to = o.last
	}
	return to.Sub(from)
}

// notAfter brings times of a clock that was ahead down to one that is known to be later.
func (v *voice) notAfter(at time.Time) {
	if v.last.After(at) {
		v.last = at
	}
	if v.first.After(at) {
		v.first = at
	}
}

// hears notes that a run speaks, and reports whether it is to be listened to: while two
// are at it none is. A run that another one has followed is a rival only if it comes
// back, and long after the other began: what of it was under way comes late, too. One that
// goes on a lease after the last word of what has followed it is the one that is left.
func (r *Rank) hears(s *Step, run uint64, m *Message) bool {
	if run == 0 || s.Lease == 0 {
		return true
	}
	v := &r.rivals
	at, live := m.Stored, m.Live || m.Stored.IsZero()
	if live {
		at = s.Now
	}
	if live != v.live {
		v.voices, v.live = nil, live // the times of the two cannot be compared
	}
	if m.Seq > v.seq { // its order is certain, the clocks of its leaders are not
		v.seq = m.Seq
		for i := range v.voices {
			v.voices[i].notAfter(at)
		}
	}
	me := voice{run, at, at}
	back := false
	if i := slices.IndexFunc(v.voices, func(o voice) bool { return o.run == run }); i >= 0 {
		me.first = v.voices[i].first
		if at.Before(v.voices[i].last) {
			me.last = v.voices[i].last // read once more
		}
		back = i < len(v.voices)-1
		v.voices = slices.Delete(v.voices, i, i+1)
	}
	followed := false // what is followed spoke, and has been silent since
	v.voices = slices.DeleteFunc(v.voices, func(o voice) bool {
		silent := me.last.Sub(o.last) >= s.Lease
		followed = followed || silent && o.run == r.incarnation
		return silent
	})
	switch {
	case v.contested && len(v.voices) == 0, !v.contested && followed && slices.Contains(r.ended, run):
		r.settle(s, run, m)
	case !v.contested && back && slices.ContainsFunc(v.voices, func(o voice) bool { return me.overlap(&o) >= s.Lease/5 }):
		r.contest(s, m)
	}
	v.voices = append(v.voices[max(0, len(v.voices)+1-maxVoices):], me)
	return !v.contested
}

// contest has the index hold nothing of the rank, and nobody asked.
func (r *Rank) contest(s *Step, m *Message) {
	r.rivals.contested = true
	r.cancel(s)
	r.discard(s, OtherProcess, all)
	r.claim, r.spoilt = claim{}, not
	r.lose(s, errContested)
	if r.heard && !r.gone {
		r.era++
		s.add(Effect{Kind: Clear, Ref: m.Ref, Era: r.era})
	}
}

// settle goes on with the run that is left, and asks for what it holds.
func (r *Rank) settle(s *Step, run uint64, m *Message) {
	r.rivals.contested = false
	r.ended = slices.DeleteFunc(slices.Clone(r.ended), func(e uint64) bool { return e == run })
	if !r.heard || r.incarnation != run {
		r.restart(s, run, m)
	}
	r.lose(s, errContested)
	r.ask(s, Contest)
}
