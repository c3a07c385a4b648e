// Package groups says how much of a prompt an engine can reuse whose model keeps several
// kinds of cache: full attention, sliding windows, chunks, states.
//
// Such a model has cache groups, each with blocks of its own, and a prefix is reusable up
// to a boundary that every group accepts. That is not the least of the groups' depths: a
// window needs only what is in it, a state only its checkpoint there, so each may have
// holes before the boundary, and accept a longer prefix but not a shorter one.
//
// Invariants:
//   - Pure: no state, no clock, no goroutine. What a group holds is asked of the caller.
//   - The answer is what vLLM 0.33.0 would reuse (kv_cache_coordinator.py and
//     single_type_kv_cache_manager.py), token by token, also where that is less than the
//     largest boundary that all accept. Its own code is the judge (`make test-groups`), of
//     which some histories are recorded in testdata.
//
// What was decided: it follows the release's steps, which are a fixed point over the
// groups from the longest candidate down, and does not try each boundary: with EAGLE the
// order of the steps decides.
//
// No lookup asks it yet: an index keeps full attention's blocks alone, and answers for such
// models are its upper bound and say that they are estimated.
//
// Ownership: a Layout does not change once made.
package groups
