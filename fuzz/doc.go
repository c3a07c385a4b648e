// Package fuzz holds the fuzz targets that drive whole parts of the project:
// the index and its shards, against the oracle. Decoders have theirs beside
// them.
//
// Invariants:
//   - Any bytes are a history: a target never rejects its input.
//   - Inputs under testdata/fuzz are run by every go test.
//
// Ownership: each run opens its own index and closes it.
package fuzz
