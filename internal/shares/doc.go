// Package shares asks the indexers of a fleet that is divided among several, each
// with a part of every space's workers: all of them at once, within a deadline. What
// they know together is the union, as a worker is in one share.
//
// Invariants:
//   - An answer counts only if it says that it is the very share that was asked.
//   - A share that does not answer is missing: counted by reason, logged when it
//     goes and when it is back. Of its workers nothing is known: they are neither
//     said to hold nothing, nor what they held before.
//   - Asking takes no longer than Config.Wait, and a share that was too slow is
//     waited for by one request at a time until it answers again: it does not make
//     all others slow.
//   - Requests under way are bounded by Config.Inflight for each share.
//
// Ownership: a Shares owns its connections, and from Follow to Close one goroutine
// that asks every Config.Every what each rank holds in all.
package shares
