// Package enginepub publishes as an engine's publisher does over ZMQ: a PUB
// socket with numbered payloads and a ROUTER socket that replays the last ones,
// in both forms of reply. Mock engines use it, and tests, which lose messages
// on purpose with it.
//
// Invariants:
//   - Sequence numbers start at 0 and rise by one, whoever listens.
//   - A subscriber that does not keep up loses messages, as with libzmq: its
//     queue holds Config.HWM of them and a message that finds it full is dropped
//     for that subscriber alone. Publish never waits.
//   - The replay buffer holds the last Config.Buffer payloads.
//
// Ownership: a Publisher owns its listeners, its connections and a goroutine
// for each; Close ends them all and waits for them. Payloads belong to the
// publisher once published.
package enginepub
