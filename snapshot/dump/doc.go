// Package dump writes what the ranks of a space hold as lines of JSON, and
// rebuilds the space from them.
//
// Every line is an object with one member:
//
//	dump    what the dump is of: Header; first
//	stored  blocks of a rank on a tier, in chain order; the arrays go together
//	grouped blocks of a cache group besides full attention, before the rank's others
//	rank    the rank is complete: Rank, with counts and the digest of its blocks
//	end     the dump is complete: Footer; last
//
// "copies" says how many copies the rank has of each block on the tier, absent
// where it is one of each. 0: the rank knows the hash and has no copy of it
// there. Sums of grouped lines stand for themselves: who knows no cache groups reads the
// rest, and who reads a rank without such lines takes depths of hybrid models for bounds. Events are those of core.Index.Dump and mean what is said there.
//
// Invariants:
//   - A rank is of one moment, the one that its line names; ranks are of
//     different ones. No rank is of a moment before the header's, so the stream
//     read on from there completes all of them.
//   - A rank whose events were read and that holds nothing has a line, too: what
//     its events are read on from.
//   - A Loader shows all ranks, each whole and with the right digest, or none. A
//     dump that was cut off is never taken for a whole one.
//
// Ownership: a Writer belongs to one goroutine. A Loader owns the ranks that it has
// not shown yet.
package dump
