// Package route chooses the rank that serves a request: by what of the prompt
// each rank has cached, what its live requests occupy, and a policy that
// weighs the two.
//
// A [Router] is for one index space. Make it with [New], tell it the workers
// with [Router.SetWorker], ask [Router.BestWorker], and with a request id given
// there follow the request with [Router.MarkPrefillComplete], [Router.Output]
// and [Router.Free].
//
// Invariants:
//   - Choosing and booking are one step: a choice sees every booking made
//     before it.
//   - Without a request id nothing is booked.
//   - The same calls at the same times with the same seed give the same
//     choices.
//   - Nothing here reads a clock but through Config.Now, opens a connection or
//     starts a goroutine.
//
// Ownership: the Router's lock guards its workers, its [load.Table], its policy
// and the random numbers. The index belongs to others and is only read; it is
// looked up before the lock is taken.
//
// A policy is one file (policy_*.go) and one line in the list of policies.
package route
