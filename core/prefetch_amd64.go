package core

// prefetch asks for the home chunks of n aims and does not wait for them, as
// a load would.
//
//go:noescape
func prefetch(at *aim, n int)
