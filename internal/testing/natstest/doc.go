// Package natstest runs the NATS server whose configuration docs/security.md
// gives, for tests that programs need no more permissions than it grants, and
// have no more. And it backs a server up and restores it, as an operator does, and runs
// clusters whose servers can be killed.
//
// Invariant: what the server refuses is noted before the one who asked is told.
//
// Ownership: a Server or Cluster belongs to its test, which ends it.
package natstest
