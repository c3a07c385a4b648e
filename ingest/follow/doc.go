// Package follow is the following of one rank's events: messages, the time, notes
// of the index and answers of its publisher come in, and what is to be done comes
// out. It has no clock, channel, goroutine, log or metric, so that a story of
// testdata, or a seed, tells all that happens.
//
// A [Rank] is in one of these states, which the index's state is to be judged by:
//
//	Unknown     Nothing was heard of the rank. The index holds nothing of it.
//	Following   The index holds what the rank held after its event LastID.
//	Waiting     The same. Messages are held back, boundedly, until the events
//	            between come; after GapAsk they are asked for, after GapWait,
//	            or if it is known that they will not come, they are lost.
//	Recovering  The publisher is asked, for events or for a dump of all that the
//	            rank holds, and messages are held back. What finds no room is
//	            dropped and asked for once more. Or the index has an engine's
//	            snapshot, and its wire has not come to where that ends.
//	Lossy       The index holds what the publisher knows of: it lacks something
//	            for good, by its own word. Nobody is asked, but an engine that gives
//	            snapshots for one.
//	Stale       Something is missing. Messages are applied as they come; the
//	            publisher is asked again with its heartbeats, later and later
//	            while that does not help.
//	Truncated   The same, because the index had no room. Nobody is asked before
//	            it has some: refusing causes no requests.
//	Departed    The rank left. The index holds nothing of it, whatever is still
//	            read of it from before, by the position of the stream. Its next
//	            event or its registration has it asked for all that it holds.
//	Contested   Two processes publish as the rank, each a run of its engine that
//	            goes on. The index holds nothing of it, and nobody is asked, until
//	            one of them was silent for Lease; then the other one is.
//	Away        The wire to its engine is broken. The index holds what the rank held
//	            after its event LastID, perhaps in a process that has ended.
//
// Only in the first three, and in Departed, is what the index has shown as fresh.
//
// Invariants:
//   - Events reach the index in the order of their ids, each at most once in an
//     incarnation; a new incarnation begins with a Clear, or with a Commit.
//   - What is not applied is dropped with a reason, and every message is Done once.
//   - Nothing is waited for longer than GapWait.
//   - Whatever a publisher answers, it is asked again later and later while that
//     does not help.
//   - What an engine itself has lost is lost for good: after it the index begins with
//     nothing, and the rank is Lossy until the engine clears all, begins anew or gives a
//     snapshot of all that it holds.
//   - A snapshot counts only if it names the process that the wire is of, and is not older
//     than what the wire brought.
//   - Incarnations are random. A message or heartbeat of one that was not seen
//     before is of a newer run, or where that is not sure, as after the position was void,
//     waits until the publisher has said which one is the present; one that ended never comes back but by its
//     publisher's own answer, or by speaking a lease after the last word of the one
//     that followed it; what registrations say of them is a question, see
//     [Rank.Told].
//   - What is missing of a stream is learnt from ids, heartbeats and registrations
//     alike; only the latter, which are in no order with messages, are given time.
//
// Ownership: a Rank belongs to one goroutine. It keeps the messages that it is
// given until they are Done, with the memory of their events. Effects are to be
// carried out in their order before the next input; a Commit puts the dump or
// snapshot that was just offered in the place of what the index has of the rank.
package follow
