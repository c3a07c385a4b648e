package core

// prefetch asks for the home chunks of n aims and does not wait for them, as
// a load would. The race detector does not see that it reads the aims; it has
// seen that locate wrote them just before.
//
//go:noescape
func prefetch(at *aim, n int)
