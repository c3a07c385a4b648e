package route

import (
	"fmt"
	"math"
)

// deviceAware is for fleets of CPU workers beside faster ones. It compares the
// two groups by live requests ÷ (ranks × weight of the device), and takes the
// least loaded rank of the lower group. With one group it is least-loaded.
type deviceAware struct{}

func (deviceAware) UsesIndex(*Weighing) bool { return false }

func (deviceAware) Choose(w *Weighing, cands []Candidate) (int, error) {
	var requests, ranks [2]float64 // of other devices, of CPUs
	for i := range cands {
		g := group(&cands[i])
		requests[g] += float64(cands[i].Requests)
		ranks[g]++
	}
	wins := 0
	switch other, cpu := requests[0]/(ranks[0]*w.Settings.DeviceRatio), requests[1]/ranks[1]; {
	case ranks[0] == 0:
		wins = 1
	case ranks[1] > 0 && cpu < other:
		wins = 1
	}
	byRequests(cands)
	for i := range cands {
		if group(&cands[i]) != wins {
			cands[i].Cost = math.Inf(1) // no temperature reaches it
		}
	}
	return w.Lowest(cands), nil
}

func group(c *Candidate) int {
	if c.CPU {
		return 1
	}
	return 0
}

func (deviceAware) Formula(_ *Weighing, c *Candidate) string {
	if math.IsInf(c.Cost, 1) {
		return fmt.Sprintf("%d requests, the other devices are less loaded", c.Requests)
	}
	return fmt.Sprintf("%d requests", c.Requests)
}
