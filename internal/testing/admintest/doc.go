// Package admintest compares a running program's admin port with its OpenAPI
// document.
//
// Invariant: every route that is only read is asked, but the profiles that take
// their time.
//
// Ownership: it keeps nothing.
package admintest
