// Package discover makes workers of the pods of an InferencePool or of a label
// selector: what is ready is registered at kvindexer or kvrouter over HTTP, what is
// gone is unregistered.
//
// Pods come from package kube; what a pod's engine serves from its annotations, from
// the program's settings, or from the engine, which is asked once. A registration over
// HTTP has no lease: it stays while this program, or the API server, is away. So
// nothing departs before the API server has given a whole list, and what a former run
// of this program registered is known by its name (Fleet.Prefix) and departs if its
// pod is gone.
//
// Two machines without clock or I/O say what is done. Fleet knows the pods, and which
// workers they come to; a Ledger, one for each place of registration, compares that
// with what is registered there, as that place lists it. Both are levels, not edges:
// what failed, or was lost by the registry, is found missing at the next look.
//
// Invariants:
//   - A worker's host is its pod's address: an annotation cannot send requests elsewhere.
//   - A pod that is not ready any more stays: its cache may be intact, and whether it
//     answers is for routers to find out. It departs when it is deleted or ends.
//   - A pod that cannot be read is as it was, and what may be registered for it stays.
//   - Only workers whose name begins with the prefix are ever unregistered.
//
// Ownership: run's goroutine owns the machines; each request has a goroutine that ends
// with it, of which there are Concurrency at most.
package discover
