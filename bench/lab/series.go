package lab

import "time"

// Series is the load of the workers over time.
type Series struct {
	Interval time.Duration
	// Live has, for each interval, the requests of each worker at its start.
	Live [][]uint32
}

// maxSamples bounds a Series: beyond it every other sample is dropped.
const maxSamples = 2048

type sampler struct {
	series  Series
	workers int
	next    time.Duration
}

func (s *sampler) init(workers int) {
	s.workers, s.series.Interval = workers, 250*time.Millisecond
}

// until takes the samples that are due before t. What they show holds since
// the last call.
func (s *sampler) until(t time.Duration, workers []*worker) {
	for s.next < t {
		row := make([]uint32, s.workers)
		for i, w := range workers {
			row[i] = uint32(w.live)
		}
		s.series.Live = append(s.series.Live, row)
		s.next += s.series.Interval
		if len(s.series.Live) >= maxSamples {
			half := s.series.Live[:0]
			for i := 0; i < maxSamples; i += 2 {
				half = append(half, s.series.Live[i])
			}
			s.series.Live = half
			s.series.Interval *= 2
			s.next = time.Duration(len(half)) * s.series.Interval
		}
	}
}
