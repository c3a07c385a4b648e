package event

// Kind says what an Event does to its holder's blocks.
type Kind uint8

// The kinds of event.
const (
	Stored  Kind = iota + 1 // blocks became resident
	Removed                 // blocks were evicted
	Cleared                 // every block of the rank (or of one tier of it) is gone
)

// Tier is where a block resides. Lower values are faster; depths are
// cumulative over tiers in this order.
type Tier uint8

// The tiers, and how many there are.
const (
	Device     Tier = iota // GPU memory
	HostPinned             // CPU memory
	Disk                   // local storage
	External               // shared or remote storage
	NumTiers   = 4
)

// Space identifies one index space. Blocks of two spaces never match each
// other.
type Space struct {
	Model     string // model name as requests give it
	BlockSize uint32 // tokens per block, 1 … 1024
	Group     string // routing group or tenant; empty is the default group
}

// Event is one change of one (worker, dp_rank)'s cache.
type Event struct {
	Kind      Kind
	Tier      Tier
	AllTiers  bool // Cleared only: every tier of the rank, not just Tier
	HasParent bool // Stored only: Parent is meaningful; else the blocks start a chain
	// Incomplete says that the stream lacks events from before this one which
	// nobody has any more: a parent that is unknown may be found with another
	// worker (core.Index.Infer).
	Incomplete bool
	// Group is the cache group that the blocks are of; 0 is the one of which the index
	// knows the places, and of models that have no others. Blocks of other groups are
	// named by their engine hashes alone: where they stand the group 0 of the rank says,
	// which has the same hashes. Not of Cleared, which is of all groups.
	Group  uint8
	DPRank uint32
	ID     uint64 // +1 per event of one (worker, dp_rank) stream
	Parent uint64 // engine hash of the block before Engine[0]

	// Engine holds the engine's own block hashes: of Stored in chain order,
	// of Removed in any order.
	Engine []uint64
	// Local holds the local (content) hashes of a Stored event, one per
	// engine hash; empty for a store that names blocks by hash alone.
	Local []uint64
}

// Batch is what one publisher sends in one message: events of one worker, in
// the order in which they happened.
type Batch struct {
	Space       Space
	Worker      uint64
	Incarnation uint64 // random per engine process start; 0 where the wire has none
	Published   int64  // Unix nanoseconds at the publisher; 0 if unknown
	// CountCopies is set for raw engine streams, which emit one store and one
	// removal per physical copy. Streams without it are already sets.
	CountCopies bool
	Events      []Event
	// Last holds the last event id of every rank; set in heartbeats only,
	// which have no events.
	Last []Position
	// Lost counts the events that the decoder could not read, where a message is
	// used all the same: what they did is not known. Only decoders of engines'
	// payloads set it.
	Lost int
	// Filtered counts the block operations that the decoder left out because
	// they are not the worker's own or cannot be indexed.
	Filtered int
	// OtherSize is the size in tokens of blocks that are among those, because it is
	// not the space's; 0 for none.
	OtherSize int
	// Eagle says that blocks among those stored are hashed with the token after each
	// (blockhash.Options.Eagle): requests are asked about with the same hashes. Only
	// decoders of engines' payloads set it; on other ways a worker's registration says it.
	Eagle bool
	// Hybrid says that the model has cache groups besides the one that is indexed, which is
	// full attention: without more, a depth is the most that can be reused then. It is told
	// as Eagle is, and so is Groups: what the stream has said of each group so far, none
	// where it does not tell them apart. The caller does not change the list.
	Hybrid bool
	Groups []CacheGroup
}

// Position is how far one (worker, dp_rank) stream has come.
type Position struct {
	DPRank uint32
	ID     uint64 // of the last event published
	// Incomplete is that of the next event.
	Incomplete bool
}

// Blocks returns the number of block operations in the batch: stored plus
// removed hashes.
func (b *Batch) Blocks() int {
	n := 0
	for i := range b.Events {
		n += len(b.Events[i].Engine)
	}
	return n
}
