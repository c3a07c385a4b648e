package vectortest

// The processor must have vectors of 32 bytes. Where the goroutine was moved to another thread between two calls, the second
// finds that thread's.

// Fill sets all bits of vectors.
func Fill()

// Filled reports whether the upper halves of vectors are as Fill has left them.
func Filled() bool

// UpperHalves reports whether something stands in the upper halves of vectors, and clears them.
func UpperHalves() bool
