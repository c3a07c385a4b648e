// Package route chooses the rank that serves a request: by what of the prompt
// each rank has cached, what its live requests occupy, and a policy that
// weighs the two.
//
// A [Router] is for one index space. Make it with [New], tell it the workers
// with [Router.SetWorker], ask [Router.BestWorker], and with a request id given
// there follow the request with [Router.MarkPrefillComplete], [Router.Output],
// [Router.Reported] and [Router.Free]. What of each prompt was to be found cached, was
// chosen and was found is in [Answer.Account] and [Router.Totals]; package account says
// what it means, and keeps decisions with all that the policy saw ([Config.Decisions]).
//
// Invariants:
//   - Choosing and booking are one step: a choice sees every booking made
//     before it.
//   - Without a request id nothing is booked.
//   - The same calls at the same times with the same seed give the same
//     choices; of a router that has met others, with the same ID, too.
//   - Nothing here reads a clock but through Config.Now, opens a connection or
//     starts a goroutine.
//
// Ownership: the Router's lock guards its workers, its [load.Table], its policy
// and the random numbers. The index belongs to others and is only read; it is
// looked up before the lock is taken.
//
// What was decided:
//   - A choice and its booking are one step under one lock, which takes some µs: two
//     requests at once would otherwise both take the idle rank.
//   - Load is what routers have placed, not what engines report: a report is late by a
//     period, in which hundreds of requests are placed. Reports only make ranks busy.
//   - A worker's state is made of what becomes of its requests, in the router that booked
//     them; health checks only say whether its process is there. An engine that fails at
//     once looks idle, and its health check is well; under the lock of the choice no two
//     requests are the one probe.
//   - The default policy predicts times: weights between cached and busy fit one fleet at
//     one load, times fit all that the lab has (docs/routing.md).
//
// A policy is one file (policy_*.go) and one line in the list of policies: it can be
// compared on traces, and every choice shown in numbers.
package route
