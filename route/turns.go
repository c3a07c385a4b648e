package route

import (
	"cmp"
	"slices"
)

// Routers that share a fleet hear of each other's bookings some ms late. Requests that
// come to several of them at one moment would all go to the rank that is best just then.
// So each router has ranks that it takes first, and the others somewhat later: which ones
// follows from the routers' ids and the ranks', so that all come to the same without a word.

// maxOthers bounds the other routers that are counted.
const maxOthers = 1024

// meet notes that there is another router.
func (r *Router) meet(owner uint64) {
	i, known := slices.BinarySearch(r.others, owner)
	if !known && len(r.others) < maxOthers {
		r.others = slices.Insert(r.others, i, owner)
		r.assigned = false
	}
}

// part notes that another router is gone.
func (r *Router) part(owner uint64) {
	if i, known := slices.BinarySearch(r.others, owner); known {
		r.others = slices.Delete(r.others, i, i+1)
		r.assigned = false
	}
}

// assign shares the ranks out among the routers, in turns. If there are more routers than
// ranks, some share one.
func (r *Router) assign() {
	if r.assigned {
		return
	}
	r.assigned = true
	routers := len(r.others) + 1
	self, _ := slices.BinarySearch(r.others, r.cfg.ID)
	byID := slices.Clone(r.members)
	slices.SortFunc(byID, func(a, b *member) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.DPRank, b.DPRank))
	})
	if len(byID) > 0 && routers > len(byID) {
		routers, self = len(byID), self%len(byID)
	}
	for i, m := range byID {
		m.others = i%routers != self
	}
}
