// Package kube follows a list of objects of the Kubernetes API: a list, and a watch
// from its resource version on, for as long as its user likes.
//
// client-go's informers do the same with a cache and types for every object there
// is. Of a pod six fields matter here, which encoding/json finds by itself, and
// nothing is cached; so a program that discovers links none of it, and the tests
// compile none of it. tools/k8s runs this package against a real API server.
//
// Invariants:
//   - Whoever is told (Sink) knows the list as it was at one moment, then each change
//     in its order. When changes may have been missed (the resource version is too
//     old, the watch cannot be read, the server was restored to an older history) the whole
//     list comes again, as Replaced.
//   - Nothing is told while the API server is away: what was said stays true.
//   - The list, an object and the wait for an answer are bounded.
//
// Ownership: the machine (follow.go) says what is asked next and knows neither
// clock nor network; Follow's goroutine owns it. A Client is safe for concurrent use.
package kube
