package core

import "github.com/kvatlas/kvatlas/event"

// Holder is a dense number for one (worker, dp_rank) of a space.
type Holder = uint32

// Outcome counts, in blocks, what one write did. Fields add up over writes.
type Outcome struct {
	Stored        int // blocks that became held on the tier
	Duplicate     int // stored blocks that the holder already held there (or one more copy)
	Removed       int // blocks that ceased to be held on the tier
	Decremented   int // removals that only took one of several copies away
	Unknown       int // removed blocks that the holder did not hold on the tier
	Replaced      int // stored engine hashes that the holder held with other content
	UnknownParent int // blocks not stored because their parent is unknown to the holder
	Inferred      int // blocks that Infer added
	UnknownBlock  int // blocks of hash-only stores whose content is not known
	Refused       int // blocks not stored because the memory budget is reached
}

// Add adds o2 to o.
func (o *Outcome) Add(o2 Outcome) {
	o.Stored += o2.Stored
	o.Duplicate += o2.Duplicate
	o.Removed += o2.Removed
	o.Decremented += o2.Decremented
	o.Unknown += o2.Unknown
	o.Replaced += o2.Replaced
	o.UnknownParent += o2.UnknownParent
	o.Inferred += o2.Inferred
	o.UnknownBlock += o2.UnknownBlock
	o.Refused += o2.Refused
}

// NumResults is how many counts an Outcome has.
const NumResults = 10

// Count is one of them, under the name that metrics have for it.
type Count struct {
	Result string
	N      int
}

// Counts returns all, always in the same order.
func (o *Outcome) Counts() [NumResults]Count {
	return [NumResults]Count{
		{"stored", o.Stored}, {"duplicate", o.Duplicate}, {"removed", o.Removed}, {"decremented", o.Decremented}, {"unknown", o.Unknown},
		{"replaced", o.Replaced}, {"unknown_parent", o.UnknownParent}, {"unknown_block", o.UnknownBlock}, {"refused", o.Refused}, {"inferred", o.Inferred},
	}
}

// Index is an exact prefix index. The reference implementation is Oracle; the
// one for production is Radix. All methods but Find belong to one writer at a
// time; Find may run beside it on any number of goroutines (not on Oracle).
//
// What a holder's blocks mean (semantics of both implementations):
//
// A block is a position: a chain of local hashes from the root. A holder names
// positions by engine hashes: one engine hash names at most one position per holder,
// a position may have several hashes. Per hash and tier a holder has a number of
// copies; the position is held on the tier while any of its hashes has copies > 0.
// A hash that has no copies on any tier is still known while the holder has,
// strictly below the hash's position, a hash with copies; otherwise it is
// forgotten.
//
// Store walks the event's blocks in order: the first block's parent is the
// position that ev.Parent names for the holder (unknown: nothing of the event is
// stored), or the root; each later block's parent is the position of the one
// before. Each block's hash is (re)bound to its position: if the holder has that
// hash at another position, all its copies there are dropped on every tier, the
// hash is unbound from it and the block counts as Replaced (and Stored). With
// copies counted, storing a held hash adds a copy; otherwise it changes
// nothing. Either way it counts as Duplicate. An event with no local hashes
// (hash-only) stores, on ev.Tier, each block whose hash is known to the
// holder, at its position; the others count as UnknownBlock (StoreHashOnly adopts those
// that other holders know).
//
// Each block is one step: a hash is forgotten if it is unknown in the state
// after a step, never for a state within it. So rebinding the only block below
// a known hash without copies to another position below it keeps it known. Hashes are forgotten
// for good: a block stored later at or below the position does not bring them
// back. Blocks beyond the shorter of Engine and Local, and tiers that do not
// exist, are ignored.
//
// Remove takes one copy (with copies counted) or all copies of each hash on
// the tier away.
type Index interface {
	// Store applies a Stored event.
	Store(h Holder, ev *event.Event, countCopies bool) Outcome
	// StoreCopies stores n copies of a block whose hash h knows on the tier, as n hash-only events
	// with copies counted do; but it takes no longer than one, and counts it as one.
	StoreCopies(h Holder, tier event.Tier, hash uint64, n uint32) Outcome
	// Remove applies a Removed event.
	Remove(h Holder, ev *event.Event, countCopies bool) Outcome
	// Clear drops every copy that h has on the tier, or on all of them.
	Clear(h Holder, tier event.Tier, allTiers bool) Outcome

	// Knows reports whether the engine hash names a position for h.
	Knows(h Holder, engine uint64) bool
	// KnowsAny reports whether one of the engine hashes names a position for h.
	KnowsAny(h Holder, engine []uint64) bool
	// KnowsChain reports whether h knows the engine hash, and has hashes for all
	// ancestors of its position.
	KnowsChain(h Holder, engine uint64) bool
	// Forget unbinds the hashes from their positions for h, with all copies, as
	// when another shard stores them. It returns how many were known.
	Forget(h Holder, engine []uint64) int

	// WhoKnows returns, of the holders that f accepts, the one with the lowest
	// number for which hash names a position. f is asked only about such.
	WhoKnows(hash uint64, f func(Holder) bool) (h Holder, ok bool)
	// Infer lets h hold, on the device tier, the position that hash has for from,
	// and all its ancestors: an engine can store a child only while it has all
	// of them, so this heals a stream whose stores were lost, under a hash
	// scheme in which equal hashes mean equal content. from says what the position
	// is and, with the lowest of its hashes for each, what it and its ancestors
	// are called. Positions that h holds on any tier, that from has no hash for,
	// or whose hash h knows for another position, are passed over. Infer returns
	// how many blocks it added: none if h knows the hash already or from does
	// not. They count as inferred until they are stored, which then counts as
	// Duplicate and adds no copy, or removed.
	Infer(h, from Holder, hash uint64) int
	// Inferred returns how many of h's blocks are inferred.
	Inferred(h Holder) int
	// StoreFrom stores, on the tier, the one block that hash names for from as h's
	// own, by that hash: what a hash-only event means to a holder that does not
	// know the hash, where another one of its hash scheme does. It counts as
	// Stored. h comes to know no other hash by that, and holds no ancestor that
	// it did not hold. StoreFrom does nothing if h knows the hash already or from
	// does not.
	StoreFrom(h, from Holder, hash uint64, tier event.Tier) Outcome

	// Find returns in m, for every holder and every tier level, the longest
	// prefix of local, from block 0, each of whose blocks the holder holds on
	// at least one tier at or below that level. Beside a writer, each block's
	// presence is one that was true at some moment during the call, and the
	// depths of a holder are still cumulative over the levels.
	Find(local []uint64, m *Matches)

	// Empty reports whether h holds nothing, on any tier, and so knows no hash.
	Empty(h Holder) bool
	// Held returns how many blocks h holds on the tier: distinct hashes with
	// copies.
	Held(h Holder, tier event.Tier) int
	// Digest returns the wrapping sum over every held (holder, tier, hash) of
	// the digest term; identity maps a holder to what the term names it by.
	Digest(space uint64, identity func(Holder) (worker uint64, dpRank uint32)) uint64
	// Dump calls f for events that rebuild the index of holder h, parents
	// before children, until f returns false. Slices live until f returns.
	// Restorer replays them.
	//
	// All are Stored events. copies[i] is how many copies Engine[i] has on
	// ev.Tier; 0 means none there, though the hash is known: others of its
	// tiers follow, or it is only known for what is below. Engine[i] equal to Engine[i+1] means
	// that the holder has no hash for the position of block i: storing the event
	// binds the hash there and, one block on, away again; copies[i] is 0. A
	// hash's position is given once; its copies on further tiers follow in
	// hash-only events.
	Dump(h Holder, f func(ev *event.Event, copies []uint32) bool)
}

// Clearer is an Index that takes what a holder has apart in steps: its writer waits for no more than one of them,
// however much that is.
type Clearer interface {
	// ClearSome takes what h has, on any tier, apart for as long as about so many blocks take, and reports whether
	// something is left. From the first call on h is empty to the other methods, and nothing is stored under its
	// number until nothing is left; but Find may still name it, and so do cuts: it is the caller who knows that it
	// is nobody's.
	ClearSome(h Holder, amount int) (left bool)
	// Owed returns as which amount for ClearSome that counts which has come to be held since the last call: who
	// clears as much never has more to be cleared than there was to begin with.
	Owed() int
}

// Prefetcher is an Index that can be told what comes, so that its memory is on the way meanwhile. Telling it changes
// nothing else, and need not be true.
type Prefetcher interface {
	// Prefetch tells which event, of which holder, comes after the one that is about to be applied.
	Prefetch(h Holder, ev *event.Event)
	// PrefetchSingles tells of events of one block that the holder has among those to come, by their engine hashes: of
	// MostSingles at most.
	PrefetchSingles(h Holder, hashes []uint64)
}

// MostSingles is of how many events of one block a Prefetcher is told at once.
const MostSingles = filterBatch
