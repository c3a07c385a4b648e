// Package recovery is how a replica gets back what it missed of a worker's
// events: the local index that a publisher keeps, and the requests and replies
// between the two.
//
// A replica asks for one page at a time, so that it sets the pace and nothing
// queues up on the way: events from an id on, or the parts of a dump. What it
// is answered:
//   - events: those that follow, as many as fit, and whether there are more;
//   - a dump, in parts: everything that the rank holds, as of an event id. It
//     is given when it is asked for (from 0) and when the ring of events no
//     longer reaches back to the id asked for;
//   - too new: the id asked for is beyond the next one;
//   - invalid: the range or the request has no meaning;
//   - busy: as many dumps as are kept are being given out, ask again later.
//
// Invariants:
//   - A reply names the publisher's incarnation and the rank's last event id.
//   - Events of a reply leave no hole between the first and the last.
//   - A bounded number of dumps is kept for each worker, one a rank, for a
//     limited time.
//   - Decoding trusts no declared length further than the bytes reach.
//
// Ownership: Source.mu guards the index and the rings; a reply's bytes belong
// to whoever asked.
package recovery
