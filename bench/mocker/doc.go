// Package mocker runs a fleet of mock engines as a process. Run feeds them with
// requests from a trace or a generated workload, keeps their virtual time in
// step with the clock, publishes their events and shows progress. Serve lets
// them answer requests over HTTP, as real engines do.
//
// Invariants of Run:
//   - The events of each worker depend only on the settings, not on the clock
//     or on how fast they are published.
//   - Every event is published before the next one is made: a publisher that is
//     full slows the fleet down and loses nothing.
//   - What is recorded is what was accepted for publishing, in that order.
//
// Invariants of Serve:
//   - A worker is registered only while it listens.
//
// Ownership: the goroutine that calls Run owns the fleet, the source and the
// record; a second one, which ends before Run does, only reads counters and
// writes the progress lines. Serve owns its workers and their listeners.
package mocker
