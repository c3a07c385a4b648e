// Package chains keeps chains of blocks as a radix tree of which each node has something of its
// user's: what a prompt shares with others is a few nodes, whatever its length.
//
// Invariants:
//   - Nodes have numbers, which stay theirs until they are unhung. A child is found by its parent and
//     its first hash: hashes need not be unique over the tree, whoever sent them.
//   - No two children of a node begin with the same hash, and no node but the root is without blocks.
//   - A node's array is its own, and has room for four times its blocks at most; nodes do not move when
//     there come more (Slab): to add one to a million copies none.
//   - Arrays of nodes that are no more are kept for the next ones, a megabyte at most.
//
// Ownership: a Tree belongs to one goroutine at a time; its users guard it with their locks.
package chains
