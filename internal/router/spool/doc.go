// Package spool holds the bodies of requests while they are under way: in memory,
// and the long ones, or all where memory is short, in files.
//
// A body takes room as its bytes arrive, not by what it promises. All of them
// together have a bound, in memory and in files, and each client has a share of
// both. Where room is short the body that arrives slowest is dropped, if it is slow:
// a client that sends little and holds much makes room for the others. Oust does so
// for those who lack something else than room, which the dropped one gives up.
//
// A body is one slice of bytes, wherever it is: a file is mapped. It was deleted
// before anything was written to it, so that nothing is left of it whatever happens.
//
// Invariants:
//   - What is accounted for is never less than what is held, but for the moments in
//     which a buffer grows or a dropped body's reader unwinds.
//   - A body's bytes stay where they are until the last who retains it has released
//     it: a mapping that is gone under a reader would end the process.
//   - A body that has arrived is not dropped.
//
// Ownership: a Spool owns the accounts, under one lock. A Body belongs to the
// goroutine that reads it; after that whoever retains it may read its bytes.
package spool
