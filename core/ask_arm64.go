package core

// askChunks asks for the home chunks of what is aimed at.
//
//go:noescape
func askChunks(at *aim, n int)

func askVector(*filter, *hasher, *uint64, int) {}
