// Package account says of each choice what was to be found cached, what was chosen and
// what the engine found, and why they differ; and keeps some choices with all that the
// policy saw.
//
// The tokens of a prompt:
//
//	prompt ≥ reachable ≥ selected      actual
//
// Reachable is the most that a rank had that was there to be asked; selected is what the
// chosen one should find; actual is what its engine says that it found. A [Shortfall] says
// why selected is less than reachable, a [Miss] why actual is not selected.
//
// Invariants:
//   - Judge and Totals are pure; a [Log] reads no clock: times are given to it.
//   - A [Decision] is not changed once it is in a Log.
//   - No text, token or hash of a prompt is in a Decision.
//   - A Log takes at most the memory that it may; what it drops is the oldest.
//
// Ownership: a Router owns the Totals of its model, under its lock. A Log is shared by all
// routers of a process; its mutex is held to put a pointer in or copy pointers out.
//
// What was decided:
//   - Tables of candidates are written for a number of rows a second, not for each choice:
//     a row costs about as much as weighing ten ranks. So that the slowest and the worst
//     predicted request of each minute are those of all requests, they are kept without
//     a table where none was written.
//   - Whether a block was evicted is not looked for in the index alone: the engine has
//     stored it again by the end of the request that missed it. What a rank has been told
//     to have let go of since the choice (shard.Losses) tells.
package account
