// Package objective knows the priorities that a pool's InferenceObjectives give
// (inference.networking.x-k8s.io/v1alpha2, which the Inference Extension has until v1.5).
//
// Each router reads them itself (package kube), so that none has to be told by another, and
// none has to be started anew; a program that is not told of a pool asks nobody.
//
// Invariants:
//   - An objective counts only while it names the pool; without a priority it has 0.
//   - While the API server is away, what is known of it holds.
//
// Ownership: Follow's goroutine writes the list, as a whole; everybody may read it.
package objective
