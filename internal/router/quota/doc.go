// Package quota bounds what tenants may use of the router in a time: requests, and
// tokens of prompts and answers.
//
// Invariants:
//   - An Account is a pure state machine: what it says follows from what was taken
//     and from the times that it is told.
//   - In any time no more is let in than the limit and what flows back meanwhile; of
//     tokens, one request may take more than that, and the next ones wait until it is
//     paid: a prompt above the limit passes, alone.
//   - What is refused takes nothing.
//   - A Table holds a bounded number of accounts. Tenants beyond share others, by their
//     names, which is counted.
//   - Tables that have joined hold the limits together: each counts what others tell that
//     was taken. Too much is let in by no more than what was not heard of yet; who does not
//     hear all others has a part of the limits. See others.go.
//
// Ownership: a Table owns its accounts under its lock. Package loadsync carries its
// messages.
package quota
