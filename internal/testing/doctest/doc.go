// Package doctest reads the examples of the documents for tests that compare
// them with the code.
//
// An example is a fenced block whose fence names a language and the example:
//
//	```hex batch
//
// Bytes are in hex, with spaces and line breaks anywhere, and a # begins a
// remark that ends with its line.
//
// Invariant: every named example is read by a test (TestEveryExampleIsRead), so
// none can go stale unnoticed.
//
// Ownership: it keeps nothing.
package doctest
