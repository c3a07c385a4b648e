// Package groups says how much of a prompt an engine can reuse whose model keeps several
// kinds of cache: full attention, sliding windows, chunks, states.
//
// Such a model has cache groups, each with blocks of its own, and a prefix is reusable up
// to a boundary that every group accepts. That is not the least of the groups' depths: a
// window needs only what is in it, a state only its checkpoint there, so each may have
// holes before the boundary, and accept a longer prefix but not a shorter one.
//
// Invariants:
//   - Pure: no clock, no goroutine, no lock. A Layout asks its caller what a group holds.
//   - The answer is what vLLM 0.33.0 would reuse (kv_cache_coordinator.py and
//     single_type_kv_cache_manager.py), token by token, also where that is less than the
//     largest boundary that all accept. Its own code is the judge (`make test-groups`), of
//     which some histories are recorded in testdata. SGLang's own code says there how much it
//     reuses of what its events tell.
//
// What was decided: it follows the release's steps, which are a fixed point over the
// groups from the longest candidate down, and does not try each boundary: with EAGLE the
// order of the steps decides.
//
// A Table is what one rank holds in its groups. In a stream groups other than full attention
// name blocks alone, of which often a few stand for many tokens; so full attention, which
// names the same prefixes alike, says where they stand, and what it does not hold cannot be
// reused. A table beside the index was chosen as the index has leading blocks, and sparse
// groups hold a few of many; it takes about 80 bytes for each block of such ranks, whichever of
// their groups and tiers hold it (BenchmarkTable), and others pay nothing. What a lookup asks of
// a group is in all a few times the prompt's blocks at most.
//
// Ownership: a Layout and a Model do not change once made. A Table has one writer.
package groups
