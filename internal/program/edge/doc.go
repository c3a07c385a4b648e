// Package edge is what every HTTP port of kvatlas answers alike: what an error says,
// and what a process says of itself (health, readiness, version, metrics, document).
//
// Invariants: a reason is a word of the list here, so that metrics may have it as a
// label; a process is ready by the same conditions at all of its ports.
//
// Ownership: values, but for a Health, which is safe for concurrent use.
package edge
