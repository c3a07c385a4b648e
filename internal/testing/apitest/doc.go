// Package apitest compares what a server takes and answers with its OpenAPI
// document.
//
// Invariants: whatever the document does not describe (a route, a status, a
// type, a field) is a fault of one of the two.
//
// Ownership: a Document is read only once it is made, and safe for concurrent
// use.
package apitest
