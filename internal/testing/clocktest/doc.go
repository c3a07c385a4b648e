// Package clocktest sets the wall clock in tests: times as the runtime reads
// them after somebody has set the machine's clock.
//
// Invariant: the difference of two such times is what has elapsed, as with
// time.Now; only who looks at the wall clock sees the step.
//
// Ownership: it keeps nothing.
package clocktest
