// Package selection gives route's choices and bookings an HTTP face, in the
// field names of Dynamo's standalone selection service, and its frontend's
// /busy_threshold.
//
// It knows no HTTP server: a Service answers a method, a path and a body with a
// status and a body, so that any server can mount it.
//
// Invariants:
//   - A request that is refused changes nothing; the answer names the field and
//     the reason.
//   - Every exchange is as api/router.yaml has it, and no route is missing there.
//   - POST /v1/select books nothing. POST /v1/select_and_reserve chooses and
//     books in one step.
//   - A field that the route does not know, or that is given twice, is refused:
//     a misspelled one would silently mean its default.
//
// Ownership: the routers are the caller's; a Service has no state but counters.
package selection
