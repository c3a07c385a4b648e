// Package pools follows the streams of pools' own: what a store's master (Mooncake's) says of each
// object when it comes and goes.
//
// A block is stored as several objects, one for each part of it (tensor rank, pipeline rank, cache
// group, keys and values): it is in the pool while all of them are there.
//
// Invariants:
//   - Lookups see a pool only while what is known of it is what the master said last: from a list of
//     all keys on, until the stream breaks or a message of it is missing.
//   - A list is taken when the stream begins, and again once its first message has come: what was
//     published before that, and never reached us, is in the list. What came meanwhile is applied after it;
//     applied twice, the last word on each key is the same.
//   - Memory is bounded: Config.MaxBlocks, Config.MaxWaiting bytes of messages while a list is read; a key
//     beyond a line's length and a part beyond event.MaxPoolParts are left out and counted.
//   - Connections and lists come at bounded rates, rarer while they bring nothing.
//
// Ownership: a Follower's goroutine owns the connection, the objects and all calls of the space
// about its pool. One more reads the socket, one a list; both end before Run returns.
//
// A stream carried by NATS, as kvpublisher carries engines', was rejected: the master lists its keys
// to anybody who asks, so each replica is exact by itself, with nothing to recover from a third.
package pools
