package route

import (
	"math"
	"math/bits"

	"github.com/kvatlas/kvatlas/event"
)

// Of a large fleet most ranks cannot be the best one of mode auto, as little of the prompt is cached there and others
// compute there. To make candidates of them costs more than all else of a choice. So the rank that has most of the
// prompt is weighed first, and of those that cost more, whatever else is found of them, none is made.

// fewestPassed is how many ranks there are at least for some to be passed over.
const fewestPassed = 32

// passed is what the policy still needs of ranks that it does not see.
type passed struct {
	least float64 // ms that the rank costs that has most of the prompt: who costs more is passed over
	best  speed   // no rank is faster
	ranks int     // how many were
	idle  bool    // one of the fleet has no prompt to compute, if so many wait that it matters
}

// usual says of a slot which choices its rank is for, as nothing else leaves one out. They read it of every rank, so it is
// kept by slot, and emptied by whoever adds or takes away a member, or changes a worker.
type usual uint8

const (
	nobody       usual = iota // no member's slot, or of one that gets no requests
	usualPrefill              // it computes prompts for others
	usualWhole                // it does the rest
)

// passes is the router's memory for that.
type passes struct {
	usual []usual             // by slot; empty once members or a worker have changed
	kinds [usualWhole + 1]int // how many there are of each
	rest  []*member           // of the choice being made, who was not passed over
}

func (r *Router) usually() []usual {
	if len(r.usual) > 0 {
		return r.usual
	}
	clear(r.kinds[:])
	for _, m := range r.bySlot[:min(len(r.bySlot), r.table.Slots())] {
		kind := usualWhole
		switch {
		case m == nil || m.worker.absent() != Eligible:
			kind = nobody
		case m.worker.Role == Prefill:
			kind = usualPrefill
		}
		r.usual = append(r.usual, kind)
		r.kinds[kind]++
	}
	return r.usual
}

func usualOf(s Stage) usual {
	if s == PrefillStage {
		return usualPrefill
	}
	return usualWhole
}

// passing returns the rank that has most of the prompt if others may be passed over, else nil: not where all are to be
// explained, or compared by more than their costs, or looked at one by one, nor where what a rank has is not what counts, as
// for a session whose prompt is not known: it may stay where it costs more.
func (r *Router) passing(s *scratch, o *Options, look, track bool) (most *member) {
	w := &r.weigh
	w.passed = passed{}
	if look || !s.looked || s.unknown != nil || w.estimated || w.Temperature != 0 || o.Stage == DecodeStage || s.guessed && o.Session != nil || len(r.members) < fewestPassed ||
		r.policy != Policy(r.times) || len(r.others) > 0 || r.peers > 1 || r.settings.TierCredits[event.Device] != 1 || r.times.aiming(w) {
		return nil
	}
	if r.most == 0 || r.usually()[r.fullest] != usualOf(o.Stage) || !plain(&r.depth[r.fullest]) {
		return nil
	}
	if most = r.bySlot[r.fullest]; most.stale || most.belief.doubted { // then another's may count for more
		return nil
	}
	var c Candidate
	var e estimate
	l := r.table.Load(most.slot)
	r.fill(&c, s, most, &l, o.Stage, track, w.Now)
	r.times.estimate(&e, w, &c, w.heldBy(&c))
	w.passed.least, w.passed.best = e.cost(), r.times.speeds.best()
	if math.IsNaN(w.passed.least) {
		return nil
	}
	return most
}

// plain reports whether what the index has of a rank is on the device.
func plain(depth *[event.NumTiers]uint32) bool {
	return depth[event.Device] == depth[event.External]
}

// passBy returns the ranks of which candidates are made, in the order of their slots: not those that cost more than the one
// that has most of the prompt, whatever else is found of them. It goes by tables alone, as nearly all are such. Where all of
// the prompt takes longer to compute than that costs, those that have nothing of it, nearly all, are not even looked at. So many
// others wait.
func (r *Router) passBy(s *scratch, fullest *member, waiting int) []*member {
	w, p, usually, kind := &r.weigh, &r.weigh.passed, r.usually(), usualOf(r.weigh.Stage)
	size, tokens, best, most := r.cfg.BlockSize, s.tokens, p.best.in(w.Stage), p.least // what is read of each rank is at hand
	long := best.least(0, 0, tokens) > most
	r.rest = r.rest[:0]
	for i, look := range r.found[:words(len(usually))] {
		if !long {
			look = math.MaxUint64
		}
		for ; look != 0; look &= look - 1 {
			slot := uint32(64*i + bits.TrailingZeros64(look))
			if int(slot) >= len(usually) {
				break
			}
			if usually[slot] != kind {
				continue
			}
			if d := &r.depth[slot]; plain(d) && slot != fullest.slot {
				requests, _, prompts, behind := r.table.Behind(slot)
				behind += tokens - min(int(d[event.Device])*size, tokens)
				// How fast this rank is need mostly not be looked up.
				over := best.least(requests, prompts, behind) > most
				if !over {
					m := r.bySlot[slot]
					over = r.times.speeds.of(slot, rankKey{m.Worker, m.DPRank}).in(w.Stage).least(requests, prompts, behind) > most
				}
				if over {
					continue
				}
			}
			r.rest = append(r.rest, r.bySlot[slot])
		}
	}
	p.ranks = r.kinds[kind] - len(r.rest)
	p.idle = waiting >= (p.ranks+1)/2 && r.idle(kind) // else nobody asks
	return r.rest
}

// idle reports whether a rank of the kind has no prompt to compute. Those of them that are candidates are asked anyway.
func (r *Router) idle(kind usual) bool {
	for slot, is := range r.usual {
		if is != kind {
			continue
		}
		if _, prefilling, _, _ := r.table.Behind(uint32(slot)); prefilling == 0 {
			return true
		}
	}
	return false
}
