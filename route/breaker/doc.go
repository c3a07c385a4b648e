// Package breaker judges a worker by what became of the requests that it was sent.
//
// A [Breaker] is a state machine without a clock or a lock:
//
//	          failures in a row, or too large a share of a window
//	Closed ──────────────────────────────────────────────► Open
//	  │  ▲                                                │  ▲
//	  │  │ enough probes succeeded            its time is │  │ a probe failed
//	  │  │                                           over ▼  │
//	  │  └──────────────────────────────────────────── HalfOpen
//	  │                                                   ▲
//	  └── refused for want of room ──► Full ──────────────┘ its time is over
//
// Somebody else's word makes a closed one half open: [Breaker.Doubt]. [Breaker.Trust] takes that back.
//
// Invariants:
//   - Open and Full admit nothing, HalfOpen at most Config.Probes unanswered
//     requests, Closed everything.
//   - Only requests that were sent in the state that it is in change it: what was
//     under way when it opened says nothing that was not known then. The probes that
//     closed it are an exception: an answer that begins well may break off.
//   - A request that succeeds and then fails counts as one that failed, in a row too.
//   - What was blamed on the worker and proves to be the request's own fault is taken
//     back, with the state that it led to.
//   - Open and Full last twice as long each time in succession, up to Config.MaxWait.
//
// Ownership: a Breaker belongs to who holds its lock; package route has one for each
// worker.
package breaker
