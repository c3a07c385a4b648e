// Package vectortest tells what assembly does to the vector registers. Until their upper halves are cleared, code for
// vectors of 16 bytes, as all that the compiler makes is, waits for what they held, on many processors; and on those that
// have no such halves nothing may touch them.
//
// Ownership: it keeps nothing.
package vectortest
