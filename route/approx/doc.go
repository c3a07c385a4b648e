// Package approx guesses what workers have cached where none of them publishes
// events: what a router sent to a rank is taken to be cached there, for a
// while.
//
// Invariants:
//   - A block is held from its last use on until its time to live is over, or
//     until the size bound makes room: least recently used first, and within
//     one prompt the tail first, so that what is left is always a prefix.
//   - The blocks in the space are those in the list, once its owners have been given what was
//     noted and dropped last, and have come to it; nobody else writes there. They are given several
//     prompts at once, with what made room for them, after 5 ms at most, and before somebody looks
//     for what shares a block with those prompts. Whoever finds that the time of something is over,
//     of what made room as well, waits until the space has let it go.
//   - Ages are the time that has elapsed on Config.Now: setting the machine's clock
//     changes none.
//
// Ownership: the Cache's lock guards its list and the order of its writes to
// the space.
package approx
