package core

import "testing"

// WithVectors calls f as on a processor that has those and no others; this one must have them. No other test may run meanwhile.
func WithVectors(v vectorSet, f func()) {
	had := vectors
	vectors = v
	defer func() { vectors = had }()
	f()
}

// VectorSet and some of its values are for tests outside.
type VectorSet = vectorSet

const (
	NoVectors = noVectors
	Narrow    = narrow
)

// HasVectors reports whether the machine has them.
func HasVectors(v vectorSet) bool { return v <= vectors }

// eachVectors runs a test with all that the machine has of them: without any the other tests run what they are compared with.
func eachVectors(t *testing.T, f func(t *testing.T)) {
	if vectors == noVectors {
		t.Skip("this machine has no vectors")
	}
	for v := vectors; v > noVectors; v-- {
		WithVectors(v, func() { t.Run([]string{narrow: "narrow", wide: "wide"}[v], f) })
	}
}
