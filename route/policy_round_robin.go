package route

import "sort"

// roundRobin takes the ranks in turn.
type roundRobin struct {
	next [DecodeStage + 1]uint32 // of each stage, the slot from which on to look
	anew [DecodeStage + 1]bool   // where chance says whose turn is first
}

func (*roundRobin) UsesIndex(*Weighing) bool { return false }

func (p *roundRobin) Choose(w *Weighing, cands []Candidate) (int, error) {
	next := &p.next[w.Stage] // the stages' pools differ
	// Candidates stand by rising slot; those left out lose their turn.
	i := sort.Search(len(cands), func(i int) bool { return cands[i].slot >= *next })
	if i == len(cands) {
		i = 0
	}
	if p.anew[w.Stage] {
		i, p.anew[w.Stage] = w.Rand.IntN(len(cands)), false
	}
	*next = cands[i].slot + 1
	return i, nil
}

func (*roundRobin) Formula(*Weighing, *Candidate) string { return "in turn" }
