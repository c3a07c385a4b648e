// Package clocktest has the clocks of tests: times as the runtime reads
// them after somebody has set the machine's clock, and the time that a thread had the processor.
//
// Invariant: the difference of two such times is what has elapsed, as with
// time.Now; only who looks at the wall clock sees the step.
//
// Ownership: it keeps nothing.
package clocktest
