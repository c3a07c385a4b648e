package console

import "math"

// metric says what a cell's value is.
type metric uint8

const (
	held metric = iota // blocks, of capacity where that is known
	load               // requests that it answers
	hit                // of prompt tokens, what its engine found cached, of late
	lag                // events that were published and not applied
	age                // seconds since its last event
	numMetrics
)

func (m metric) String() string {
	return [...]string{"held", "load", "hit", "lag", "age", "unknown"}[min(m, numMetrics)]
}

// metricOf returns the metric of the name; that of none is held.
func metricOf(name string) (metric, bool) {
	if name == "" {
		return held, true
	}
	for m := range numMetrics {
		if m.String() == name {
			return m, true
		}
	}
	return 0, false
}

// scale is what a value of 254 stands for.
type scale struct {
	unit string
	most float64
}

const (
	unknown   = 255
	mostValue = 254
)

// value returns x in parts of the scale; NaN is unknown.
func (s scale) value(x float64) byte {
	switch {
	case math.IsNaN(x):
		return unknown
	case x <= 0:
		return 0
	case x >= s.most:
		return mostValue
	}
	return byte(math.Round(x / s.most * mostValue))
}

// round returns a number from 1, 2 or 5 times a power of ten that is not less: scales
// that changed with each second's greatest value would change every cell.
func round(x float64) float64 {
	if x <= 1 {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(x)))
	for _, k := range [...]float64{1, 2, 5, 10} {
		if x <= k*p {
			return k * p
		}
	}
	return 10 * p
}

// state is what a cell needs attention for; the greatest counts.
type state uint8

const (
	well state = iota
	draining
	gap
	recovering
	truncated
	mismatch
	silent
	conflict
	stale
	dead
	numStates
)

func (s state) String() string {
	return [...]string{"well", "draining", "gap", "recovering", "truncated", "mismatch", "silent", "conflict", "stale", "dead", "?"}[min(s, numStates)]
}

// say says what a state means, for people.
func (s state) say() string {
	return [...]string{
		"nothing is known to be wrong", "gets no new requests and keeps what it holds",
		"events of it are missing: they are waited for, or lost for good", "its publisher is asked for what is missing",
		"the memory budget refused blocks of it", "its hashes can never match those of requests", "has not been heard of for too long, or answers nothing",
		"two processes publish as it: what it holds is not counted", "something is missing that is not known: what is shown of it may be gone",
		"its lease is lost, or its engine does not answer",
		"",
	}[min(s, numStates)]
}
