// Package stream is the JetStream stream of one index space: its name, its
// subjects, its settings and the checks on them; and the subjects of what
// workers publish and answer without a stream.
//
// Invariants:
//   - One stream a space, so that a position, a snapshot and a trim never
//     cross spaces. Its metadata says which space, so that a replica finds all
//     streams of a namespace.
//   - A stream that is configured to lose acknowledged messages other than by
//     age is refused with a reason, on the publishing and on the reading side.
//   - An existing stream is never changed: whoever made it chose its limits.
//
// Ownership: the server owns the streams; nothing here keeps state.
package stream
