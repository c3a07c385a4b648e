// Package modelfiles has the files of a model by which its prompts become tokens, as a set
// that is known by its content: read from a directory, or fetched from where a worker's
// kvpublisher has put them.
//
// Invariants:
//   - Only files of known names are read, each of bounded size: a directory of weights costs
//     nothing, and nobody is made to read what is none of this.
//   - A set's ID is the hash of its names and contents: two workers that name the same have
//     the same, to the byte.
//
// Ownership: a Set is not changed once it is made.
package modelfiles
