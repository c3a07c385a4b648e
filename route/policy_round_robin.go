package route

import "sort"

// roundRobin takes the ranks in turn.
type roundRobin struct{ next uint32 } // the slot from which on to look

func (*roundRobin) UsesIndex(*Weighing) bool { return false }

func (p *roundRobin) Choose(_ *Weighing, cands []Candidate) (int, error) {
	// Candidates stand by rising slot; those left out lose their turn.
	i := sort.Search(len(cands), func(i int) bool { return cands[i].slot >= p.next })
	if i == len(cands) {
		i = 0
	}
	p.next = cands[i].slot + 1
	return i, nil
}

func (*roundRobin) Formula(*Weighing, *Candidate) string { return "in turn" }
