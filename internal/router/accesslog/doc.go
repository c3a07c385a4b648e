// Package accesslog writes a line of JSON about each request: who asked what of whom,
// how it went and how long it took.
//
// Invariants: nothing that was said is in it, no prompt, answer, query string or token;
// texts that clients choose are bounded. Nobody waits for it: what does not fit into its
// buffer is dropped and counted.
//
// Ownership: one goroutine writes, from Open or New to Close; callers fill the buffer
// under the lock.
package accesslog
