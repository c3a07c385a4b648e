// Package e2e tests the real binaries together, and judges their answers by
// the oracle.
//
// The tests start kvindexer and kvmocker on free ports of the loopback
// interface, with a data directory of their own, and let the mock fleet record
// what it publishes. The judge, a program of its own so that the oracle's
// gigabyte of maps is not slowed down by the race detector, feeds the oracle
// with that record and compares every answer of the index with it.
//
// Ownership: each test owns its processes and its data directory; both are
// gone when it ends.
package e2e
