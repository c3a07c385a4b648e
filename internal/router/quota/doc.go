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
//   - A Table holds a bounded number of accounts. Tenants beyond share one.
//
// Ownership: a Table owns its accounts under its lock.
package quota
