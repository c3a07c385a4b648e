// Package console is the page on which a program's fleet is looked at, and the data that
// it is drawn from.
//
// It stands at one path B of a port: / of the admin ports, /console/ of the public ones,
// wherever the library's handler is mounted. Pages ask with relative URLs:
//
//	GET  B, B<file>              the files of folder static, for everybody: they tell nothing
//	GET  B api/events?metric=M   what happens, as server-sent events; M is held, load, hit, lag or age
//	GET  B api/worker?id=W       all that is known of a worker: type worker
//	GET  B api/prefixes?model=&block_size=&group=&node=ID&limit=50   what the fleet holds, as a tree, widest
//	                             first: type prefixes. Without a model the first space is taken; spaces lists all
//	GET  B api/prefixes/holders?node=ID&limit=   who holds a node: type holders
//	POST B api/find              {model, block_size, group, token_ids | block_hashes | text, lora_name, cache_salt}: as
//	                             POST /v1/explain answers, without hashes; block_hashes are local ones, of each block
//	GET  B api/decisions?limit=… choices that are kept, as /v1/decisions with its arguments, but ids as texts
//	GET  B api/decisions/ID      one, with its candidates
//	GET  B api/streams           how events are read: type streams
//	GET  B api/settings          settings (an operator's), version, health: type settings
//
// A node of the tree is a stretch of blocks in which nothing forks. Ids stand for no longer
// than they are asked for now and then: one that is not known any more, or whose prefix
// nobody holds, is answered with 404 and unknown_node, and the page begins at the root.
// Hits are counted among the last prompts that were sampled ("sampled" says how many);
// null where none are.
//
// All below api/ needs a reader's token where there are tokens, as Authorization: Bearer: a
// browser's EventSource sends none, so pages read the stream with fetch. A tenant's token
// shows its routing group and nothing else. Refusals are {"error":{field, reason,
// message}}, as at the other routes. Worker ids and other large numbers are texts.
//
// Events of api/events, each one JSON object:
//
//	overview  each second: {program, version, replica, now_ms, started_ms, sampled_ms, events_as_of_ms, ready, not_ready: [text],
//	          totals: {…}, attention: [{kind, count, workers: [at most 5 ids], more, say}]}; events_as_of_ms is when
//	          NATS was heard last, null while it is heard
//	members   first, and when who is there changes: {epoch, cell: "rank" or "worker",
//	          groups: [{key, model, block_size, group, role, cells: [{id, worker, rank}]}]}
//	cells     each second, groups that changed: {epoch, metric, unit, max,
//	          groups: [{key, state, value}]}, base64 of a byte a cell in the order of members
//	decision  at most 10 a second of those that are sampled
//	history   first: {step_ms, points: [{now_ms, totals}]}, of the last minutes in which somebody looked
//
// A state is 0 well, 1 draining, 2 gap, 3 recovering, 4 truncated, 5 mismatch, 6 silent, 7
// conflict, 8 stale, 9 dead: the greatest that holds. A value is 0 to 254 parts of 254 of
// max, or 255: unknown. Of totals and values null and 255 stand for what is not known, and
// for what the program does not have; nothing that is old is shown as new.
//
// Invariants:
//   - Nothing is sampled while nobody looks. While somebody does, one goroutine looks at
//     the fleet once a second, and all readers get the same bytes: none is waited for,
//     and one that is slow misses frames.
//   - Readers are bounded, and so is each answer, whatever it is asked for.
//   - No text, token or hash of a prompt is in any answer. What stands for a prefix is
//     made with a key that is this process's own.
//   - Nothing changes what is looked at.
//
// Ownership: a Console owns its sampler; frames are not changed once a reader may have
// them.
package console
