// Package core is the exact prefix index of one shard of one space: for a
// chain of block hashes it tells, for every holder, how many leading blocks
// the holder has.
//
// Invariants:
//   - Pure: no clock, network, disk, goroutine, log or chance. The same calls
//     give the same bytes; under another [Key] the same answers, pieces of cuts,
//     dumps and digests. (hugemem has the memory of big indexes ready ahead, on a goroutine
//     of its own, which changes nothing but how long a write takes.)
//   - One writer at a time; any number of concurrent readers, which take no
//     lock and write no shared memory.
//   - Answers are exact in the sense of [Index.Find].
//
// # What it is made of
//
// A chain is stored once, in runs: stretches of blocks with the children that leave
// them at any offset. A divergence splits nothing.
//
//	root ── children (offset, first hash) ─► run A ─────────────────────────────┐
//	                                     │ body (what readers see)              │
//	                                     │  content   [256][256][··]  hashes    │
//	                                     │  length    530                       │
//	                                     │  coverage  (holder, held length) × 2 │
//	                                     │            or list of 16, or wide:   │
//	                                     │            full set, part set, each's│
//	                                     │  tiers     the same for +host, …     │
//	                                     │  children ┬ (256, h) ─► run B        │
//	                                     │           └ (530, h) ─► run C        │
//	                                     │ hashes      [16][16]…  engine hashes │
//	                                     │ exceptions  holder → holes, copies,  │
//	                                     │             tiers, own hashes        │
//	                                     └──────────────────────────────────────┘
//	filter:      of one holder: the engine hashes that it knows, 24 bits of each
//	tails:       of one holder: where its chains ended last
//	directory:   engine hash ─► block number (segment, offset) ─► run and position
//	descendants: (run, holder) ─► child runs in which the holder is present
//
// A lookup compares the request with a run's content, drops the holders whose held
// lengths end in it, and goes on in the child. Its cost grows with the runs on the path
// and the matched bytes. It needs no lock because the writer publishes in order: content
// before length, a child before the table that lists it, a new body whole. What a
// published slot means never changes within its body or table. The arguments stand where
// the writing is done: run.go (bodies), cover.go (held lengths), children.go (children),
// find.go (what a reader checks again).
//
//   - Content is the local hashes, in pieces of 256, once for all holders.
//   - Coverage says how many leading blocks of the run each holder has: its held
//     length. Two holders stand in the body itself, up to 16 in a list; more make a
//     wide table: two bitsets, and a held length for those who do not have the
//     commonest one, so that a lookup takes the others 64 at a time. To look through the coverage
//     of more than 64, and to copy it, is paid for by stored and removed blocks:
//     where the runs of a shared prompt would change shape for each event of one
//     rank, they stay as they are until then.
//   - Engine hashes are in segments of 16 that only the writer reads. The directory
//     finds a block by its engine hash with 12 entries a cache line; it stores no hash
//     but a tag, and checks against the segment.
//   - The directory need not have every hash. What a write must know of a new one is that its holder
//     does not know it: its filter says so, with 24 bits of each hash that it knows and no other
//     memory, and only hashes that are likely to be asked for are entered. What the filter may have,
//     and neither tails nor the directory lead to, is searched for in the holder's runs. A holder for which that is
//     too often, or which has more than 131,072 hashes, has all of them entered, some with each store (sparse.go).
//   - Descendants keep the hashes of evicted ancestors known while something below is
//     held. They count child runs, and know the highest offset among them.
//   - An exception exists only for what is not ordinary: holes, lower tiers, copies
//     beyond the first, hashes of the holder's own. A hole ends the held length there.
//   - Tiers: a run in which someone has blocks on a lower tier has coverage for each
//     cumulative level; the others answer all levels with the first. A lookup reads
//     the levels one after the other beside the writer, then cuts each to the one
//     above it: what ended there was absent on all of its tiers.
//
// A third of the writer's time goes to filters and directory, a random cache line for each block
// stored and each removed. So the lines of up to 32 blocks are asked for before the first
// is used (filter.go, probe.go), and of the next 32 before these are done. These loops, searches and the
// comparison of content are also in assembly, for amd64 with vectors of 32 bytes, and those of filters and content of 64, too: what it
// does is what the Go loops beside it do, which other processors run, and tests compare them. Of arm64 it only asks for lines.
//
// Engines' commonest events, one block more or less at the end of a run, are done at once
// where all is ordinary (end.go): with all that a write may have to look after, such an event
// took 1,600 or 1,400 instructions, a quarter of the writer's time on a fleet that generates. So is
// a removal in no order that is one hole more in a run (scattered.go).
//
// A holder is cleared in steps (clear.go): from the first on nothing counts as its own, but lookups and cuts have what
// is left under its number. So the caller gives that to nobody else until nothing is left, and a holder that goes on
// another one. What all hold (Cut), or one does (Dump), is copied in steps: a run that is to change is copied before.
//
// Memory is accounted by kind with the allocator's size classes. Beyond the budget,
// which all indexes of the process share, blocks of holders with more than an equal
// share of their index are refused, a sixteenth (at least 4 MiB) further on those of
// all: what a step may take, with the huge pages that it may begin, is granted before it
// is made. A refused block ends what its engine hash meant before, because its engine has
// given the hash away: so it does not matter that, with several shards, the others
// have forgotten it before the storing shard refuses. Removals are always applied, and
// a hole takes memory; that is bounded by what is held. What is freed is given
// back in whole huge pages, but for a few: so where a budget is no more than a few huge
// pages for each shard, an index that was full may stay it while it has a block.
//
// Rejected inside of it: an entry for each block (dependent accesses and tens of bytes
// each); flat maps (they stop the writer when they grow and do not shrink); a table
// for each worker (a known chain would cost memory for each block again, as it does in a filter, which
// for that reason who mostly joins others does not have); sequence
// locks (readers retry under a burst); interval lists of holes in the coverage (a
// match ends at the first hole anyway); filters that cannot forget (Bloom's): what is stored again after it was evicted is all taken
// for known, and they are made anew as often as a holder's blocks change once; one filter for all holders (it
// would have to grow beside them all, and does not say whose runs to search); entries for joined content in the
// directory alone (each new hash would be looked for there, too).
//
// # What was decided
//
//   - Answers are exact, and a reference judges every layer: an approximate overlap
//     costs a prefill that nobody can explain. So nothing jumps over positions to find a
//     depth: a hole inside a jump is not seen.
//   - A block is a position in a chain, and holders name positions by their engines'
//     hashes: engines need not agree on these, and the same content is stored once.
//     Engine hashes are not computed again: each engine version has its own recipe.
//   - A store with an unknown parent is counted, and its rank asked for what is missing;
//     where its publisher lacks that too, the place is the one that another worker of the
//     same engine hash scheme has, and else none. Guessing, as that it begins a chain,
//     would invent matches; equal hashes of one scheme are equal content.
//   - A store by hash alone means what is known of the hash when it is applied, of the
//     rank or of a worker of its scheme; else it is counted, and nobody keeps it. Engines
//     tell a block's content before they offload it by hash; whoever kept unknown hashes
//     would have to tell each reader what became of them.
//
// # Ownership
//
// The caller (package shard) owns an Index and is its only writer.
// Holder numbers are the caller's, too: dense, small, one per (worker,
// dp_rank), the same in all shards of a space.
package core
