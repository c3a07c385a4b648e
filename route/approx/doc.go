// Package approx guesses what workers have cached where none of them publishes
// events: what a router sent to a rank is taken to be cached there, for a
// while.
//
// Invariants:
//   - A block is held from its last use on until its time to live is over, or
//     until the size bound makes room: least recently used first, and within
//     one prompt the tail first, so that what is left is always a prefix.
//   - The blocks in the space are those in the list, once its owners have come to what they
//     were given; nobody else writes there.
//   - Ages are the time that has elapsed on Config.Now: setting the machine's clock
//     changes none.
//
// Ownership: the Cache's lock guards its list and the order of its writes to
// the space.
package approx
