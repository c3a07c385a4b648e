// Package sidecar publishes what an engine says of its KV cache: it follows the
// engine's stream, keeps an index of each rank, and publishes the changes of
// that index, so that a raw stream, in which copies count, becomes a set.
//
// A stream is one rank. What it publishes is a function of the batches since it
// began: the same batches give the same events with the same ids. So the state
// that is kept on disk may be older than what was published. After a crash the
// engine's replay brings the batches since then again, and what comes of them
// is what was published before; readers know it by its ids.
//
// Invariants:
//   - A store of a held block is not published, and a removal only when the last
//     copy goes; but of tiers that are a pool's all is, as what is there is not this
//     engine's alone.
//   - The kept state covers nothing that NATS has not acknowledged, and is
//     whole: a damaged or foreign file is refused, and the stream begins anew.
//   - A stream begins anew, with a new incarnation and a Cleared as its first
//     event, when the engine restarts and when batches are lost for good: after
//     that nothing says what the engine still holds. What was kept is removed
//     before anything of the new beginning is published. A stream that began after a loss is
//     incomplete until the engine clears its cache, restarts or gives a snapshot.
//   - With a snapshot of the engine's it begins anew, too, and is incomplete until the engine's
//     own stream has come to the snapshot.
//   - A batch that came and cannot be used (undecodable, oversize) ends nothing:
//     its stream is incomplete from then on.
//
// Ownership: a stream belongs to the goroutine that follows its engine; saving
// runs beside it on bytes of its own, one at a time. A Sidecar owns its streams,
// their feeds and its listeners, and ends them all before Run returns.
package sidecar
