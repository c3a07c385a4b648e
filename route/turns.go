package route

import (
	"slices"
)

// Routers that share a fleet hear of each other's bookings some ms late. Requests that
// come to several of them at one moment would all go to the rank that is best just then.
// So each router has ranks that it takes first, and the others somewhat later: which ones
// follows from the routers' ids and the ranks', so that all come to the same without a word.

// maxOthers bounds the other routers that are counted.
const maxOthers = 1024

// meet notes that there is another router. Those of one fleet mostly have the same seed, and must not draw alike.
func (r *Router) meet(owner uint64) {
	i, known := slices.BinarySearch(r.others, owner)
	if !known && len(r.others) == 0 {
		r.chance.Seed(r.cfg.Settings.Seed, r.cfg.ID)
		if turns, is := r.policy.(*roundRobin); is {
			turns.anew = [...]bool{Whole: true, PrefillStage: true, DecodeStage: true}
		}
	}
	if !known && len(r.others) < maxOthers {
		r.others = slices.Insert(r.others, i, owner)
		r.assigned = false
	}
}

// part notes that another router is gone.
func (r *Router) part(owner uint64) {
	r.bids.leave(owner)
	if i, known := slices.BinarySearch(r.others, owner); known {
		r.others = slices.Delete(r.others, i, i+1)
		r.assigned = false
	}
}

// assign shares the ranks out among the routers, in turns: those that compute prompts for others
// and the rest each for themselves, as a choice is among one kind. If there are more routers than
// ranks, those beyond share the ranks of others: what several take at one moment
// is settled by bids there, too.
func (r *Router) assign() {
	if r.assigned {
		return
	}
	r.assigned = true
	byID := slices.Clone(r.members)
	slices.SortFunc(byID, func(a, b *member) int { return a.RankID.Compare(b.RankID) })
	n, _ := slices.BinarySearch(r.others, r.cfg.ID)
	for _, prefill := range [...]bool{false, true} {
		kind := slices.DeleteFunc(slices.Clone(byID), func(m *member) bool { return (m.worker.Role == Prefill) != prefill })
		routers, self := len(r.others)+1, n
		if len(kind) > 0 && routers > len(kind) {
			routers, self = len(kind), self%len(kind)
		}
		for i, m := range kind {
			m.others, m.shared = i%routers != self, n >= len(kind)
		}
	}
}
