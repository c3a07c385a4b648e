// Package replica is one copy of a namespace's index, kept up to date: the
// connection to NATS, who is registered, the index of every space, the reading of
// streams and of engines' own sockets, snapshots, the memory budget, metrics and
// readiness, composed once for every program that has an index.
//
//	r := replica.New(cfg)      // lookups may begin: they find nothing yet
//	err := r.Start(ctx)        // connects, restores, begins to read
//	err = r.Ready()            // nil when it has caught up
//	err = r.Close(ctx)         // with a last snapshot
//
// Invariants:
//   - What a program knows of an engine depends on the events and the settings
//     alone, not on which program it is: each decision is made here, once.
//   - Workers that leave the registry hold nothing any more, however their events
//     come; what one that is back holds is asked for.
//   - The registry is read before the first event is applied, and a snapshot is
//     loaded before the stream goes on after it.
//   - Close ends what Start began, the reading first, so that the last snapshots
//     are of what lookups answer in the end.
//
// Ownership: a Replica owns its connection, its Set, and every goroutine that
// fills it. Programs read the Set, and serve what they like of it.
package replica
