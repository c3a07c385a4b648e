// Package fleet knows, for a router process, which models there are, which
// workers serve them and where their engines listen, and keeps one route.Router
// for each index space.
//
// Invariants:
//   - A worker that drains, or whose engine does not answer, gets no new
//     requests; those under way go on.
//   - A model stays when its last worker leaves, so that requests for it are
//     answered with "no worker" and not with "no such model".
//   - Looking up takes no lock: readers see a list that is replaced as a whole.
//
// Ownership: a Fleet owns its Routers, approximate indexes and links to other
// routers; Close ends them. The index that events fill is the caller's.
package fleet
