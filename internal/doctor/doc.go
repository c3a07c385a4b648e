// Package doctor judges what was found of a fleet's workers: whether what they are
// registered as, what their engines say, and what arrives of their events fit together.
// It is pure: facts go in, findings come out. Package probe gathers the facts, by asking
// engines and listening; a replica has those of the registry alone, and shows what
// follows from them as warnings of its workers.
//
// Invariants:
//   - What was not looked at is a finding of level Unknown that says why, or none, and
//     never one of level OK.
//   - A finding names what to do.
//   - Findings do not depend on the order of the facts.
package doctor
