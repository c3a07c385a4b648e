// Package workload generates requests that look like those of a fleet: system
// prompts of unequal popularity, conversations, agents with long contexts and
// one-off prompts, arriving in bursts.
//
// Invariants:
//   - The same Config gives the same requests.
//   - Requests come in the order of their arrival.
//   - Prompts share exactly the ids of what they have in common, and a
//     conversation's next prompt extends the answer before it.
//   - Memory is that of the sessions alive, not of those that were.
//
// Ownership: a Generator belongs to one goroutine.
package workload
