// Package peer starts a replica from what a living one knows: it copies the dump
// of each stream's space over HTTP, and says from where the stream is read on.
//
// Invariants:
//   - Nothing of a space is shown before all of its dump is there and right, and
//     nothing is left of one that is not: the start then does without.
//   - A dump is refused that is damaged, of another space, hash scheme or stream,
//     or that does not say how far events were read.
//   - A broken connection is taken up again after the last rank that came whole.
//     A peer that does not get further is given up after some attempts.
//   - Memory is bounded by the longest line of a dump and the index itself.
//
// Ownership: a Source belongs to the goroutine that calls Copy.
package peer
