// Package approx guesses what workers have cached where none of them publishes
// events: what a router sent to a rank is taken to be cached there, for a
// while.
//
// Invariants:
//   - A block is held from its last use on until its time to live is over, or
//     until the size bound makes room: least recently used first, and within
//     one prompt the tail first, so that what is left is always a prefix.
//   - A prompt costs as many steps as it has partings from others, not as it has blocks.
//   - Of what is dropped because it is old, or makes room, other requests wait for some runs at most.
//   - Ages are the time that has elapsed on Config.Now: setting the machine's clock
//     changes none.
//
// Ownership: the Cache's lock guards all of it, and is held for a look-up too: that takes less than
// to hand what was noted to another goroutine, which has readers without a lock (5.1 µs of
// processor time a prompt, as a space of package shard with an owner).
package approx
