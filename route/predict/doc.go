// Package predict compares how many prompt tokens a router expected to be
// cached with how many the engine says it found, and notices a worker whose
// predictions stay wrong: another hash seed, block size or salt, or lost
// events.
//
// Invariants:
//   - A worker is called wrong or right again once per change of mind.
//   - A difference of up to one block is none: engines compute at least the
//     last token of a prompt that is cached whole.
//
// Ownership: a Check's lock guards all of it.
package predict
