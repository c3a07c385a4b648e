package load

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/shard"
)

// ErrDuplicate is wrapped by Add for a key that has a live booking.
var ErrDuplicate = errors.New("the request has a live booking")

// Config holds what a Table is made with.
type Config struct {
	BlockSize int // tokens; below 1 counts as 1
	// AssumeReuse lets a block that several live requests of a rank share count
	// once; without it every block of every request counts.
	AssumeReuse bool
	// TrackOutput counts the blocks that generation fills.
	TrackOutput bool
	// OutputDecay lets a request's output blocks count less the nearer it is to
	// its expected end: a request about to end gives its blocks back soon. It
	// needs TrackOutput and applies to requests whose length is expected.
	OutputDecay bool
}

// Key names a booking. Routers name their own requests; so the owner is part
// of the key, and no router can end another's booking.
type Key struct {
	Owner uint64 // the router that placed the request
	ID    string
	// Stage tells bookings of one request in several pools apart.
	Stage uint8
}

// Request is what a booking occupies.
type Request struct {
	// Blocks are the hashes of the prompt's complete blocks from the first on,
	// for those that decoding occupies; empty if it is not tracked. Any hashes
	// will do in which equal prefixes mean equal content: local or sequence
	// hashes, but of one kind for all requests that should share.
	Blocks []uint64
	// Private counts further blocks, shared with no other request.
	Private int
	// PromptTokens is the prompt's length, NewTokens how many of them are not
	// cached and so must be computed.
	PromptTokens, NewTokens int
	// ExpectedOutput is how many tokens the request is expected to generate; 0
	// if unknown.
	ExpectedOutput int
	// Generated is how many it has generated already, and Prefilled whether its
	// first token is out: for bookings taken over from another router.
	Generated int
	Prefilled bool
	// Decay is what its output blocks count less than 1, as OutputBlock last
	// said; 0 if it has said nothing, and below 0 if they count whole.
	Decay float64
	// Leased bookings end when they make no progress for the time that is given
	// to Expire.
	Leased bool
}

// Load is what the live requests of one rank occupy.
type Load struct {
	Requests      int     // live
	Prefilling    int     // of these, without a first token
	PrefillTokens int     // prompt tokens of those that are yet to be computed
	DecodeBlocks  float64 // blocks in use, output blocks included where tracked
	OutputLeft    int     // tokens still expected, over requests with an expectation
	// PromptTokens is the prompts' length, those that share blocks counted each.
	PromptTokens int
}

// unit is the fixed-point one of output blocks: sums must come back to zero
// exactly, which floating point does not promise.
const unit = 1 << 16

// mostEnded bounds the bookings that are kept for their memory.
const mostEnded = 1024

// MaxCount bounds each number of a booking, in tokens or blocks: more than any
// prompt has, and so few that no sum over the bookings overflows, which would
// make the busiest rank look idle.
const MaxCount = 1 << 28

// count returns n as a booking may have it.
func count(n int) int { return min(max(n, 0), MaxCount) }

// whole is a Decay of blocks that count whole because the caller says so.
const whole = -1

// smallPeak is how much room, in bookings or runs of blocks, an idle table may
// keep: renewing it each time would cost more than it frees.
const smallPeak = 64

// Table holds the live bookings. The zero value is not usable; see New.
type Table struct {
	cfg    Config
	tree   tree
	live   map[Key]*booking
	made   uint64    // bookings, ever
	parts  int       // of these, those with a stage
	peak   int       // most live bookings since there were none
	latest time.Time // that a booking was made or had its first token
	first  *booking  // leased bookings, by time of last progress
	last   *booking

	slots   []slot
	numbers map[shard.RankID]uint32
	spare   []uint32   // unused slot numbers
	ended   []*booking // for their memory
}

// slot is one rank: its number indexes the caller's tables too. What every choice reads of every rank
// comes first, and fits one line of the cache.
type slot struct {
	requests   int
	prefilling int
	prefill    int
	prompts    int      // tokens
	blocks     int      // of prompts
	output     int64    // of generation, in units
	head       *booking // the first of those without a first token, as they were booked
	headTokens int      // its own

	since      time.Time // its turn
	tail       *booking
	outputLeft int
	rank       shard.RankID
	used, kept bool
}

type booking struct {
	key        Key
	serial     uint64 // of all that were made
	slot       uint32
	end        uint32 // the tree node at which its blocks end
	prefilling bool
	leased     bool
	prompt     int
	newTokens  int
	private    int
	generated  int
	expected   int
	outBlocks  int
	output     int64   // units
	decay      float64 // as Request.Decay
	progress   time.Time
	prev, next *booking
	// Of the slot's bookings without a first token.
	before, after *booking
}

// New returns an empty table.
func New(cfg Config) *Table {
	cfg.BlockSize = max(cfg.BlockSize, 1)
	return &Table{cfg: cfg, tree: newTree(), live: make(map[Key]*booking), numbers: make(map[shard.RankID]uint32)}
}

// Slot returns the rank's slot number, made if it has none. Numbers are dense
// and reused once the rank is not kept and has no live request.
func (t *Table) Slot(rank shard.RankID) uint32 {
	if s, ok := t.numbers[rank]; ok {
		return s
	}
	var s uint32
	if n := len(t.spare); n > 0 {
		s, t.spare = t.spare[n-1], t.spare[:n-1]
	} else {
		s = uint32(len(t.slots))
		t.slots = append(t.slots, slot{})
	}
	t.slots[s] = slot{rank: rank, used: true}
	t.numbers[rank] = s
	return s
}

// Find returns the rank's slot number if it has one.
func (t *Table) Find(rank shard.RankID) (uint32, bool) {
	s, ok := t.numbers[rank]
	return s, ok
}

// Slots returns how many slot numbers there are: all are below it.
func (t *Table) Slots() int { return len(t.slots) }

// Keep makes the rank's slot stay while it has no live request, and returns
// it.
func (t *Table) Keep(rank shard.RankID) uint32 {
	s := t.Slot(rank)
	t.slots[s].kept = true
	return s
}

// Drop ends the owner's bookings on the rank, and gives up its slot unless others have some there, who see to their end.
// It calls gone, if not nil, for each.
func (t *Table) Drop(rank shard.RankID, owner uint64, gone func(Key)) {
	s, ok := t.numbers[rank]
	if !ok {
		return
	}
	t.slots[s].kept = false
	if t.slots[s].requests > 0 { // else all need not be looked through
		t.endAll(gone, func(b *booking) bool { return b.slot == s && b.key.Owner == owner })
	}
	t.release(s)
}

// DropOwner ends all bookings of a router.
func (t *Table) DropOwner(owner uint64) {
	t.endAll(nil, func(b *booking) bool { return b.key.Owner == owner })
}

func (t *Table) endAll(gone func(Key), which func(*booking) bool) {
	for _, b := range t.bookings(which) {
		t.end(b)
		t.release(b.slot)
		if gone != nil {
			gone(b.key)
		}
	}
}

// bookings returns those live ones in the order in which they were made, on which it depends who is next at a rank.
func (t *Table) bookings(which func(*booking) bool) (list []*booking) {
	for _, b := range t.live {
		if which(b) {
			list = append(list, b)
		}
	}
	slices.SortFunc(list, func(x, y *booking) int { return cmp.Compare(x.serial, y.serial) })
	return list
}

// release gives up a slot that nobody needs.
func (t *Table) release(s uint32) {
	if int(s) >= len(t.slots) {
		return
	}
	if sl := &t.slots[s]; sl.used && !sl.kept && sl.requests == 0 {
		delete(t.numbers, sl.rank)
		*sl = slot{}
		t.spare = append(t.spare, s)
	}
	if len(t.numbers) == 0 {
		t.slots, t.spare = nil, nil
	}
}

// Load returns what occupies the slot.
func (t *Table) Load(s uint32) Load {
	if int(s) >= len(t.slots) {
		return Load{}
	}
	sl := &t.slots[s]
	return Load{
		Requests:      sl.requests,
		Prefilling:    sl.prefilling,
		PrefillTokens: sl.prefill,
		DecodeBlocks:  float64(sl.blocks) + float64(sl.output)/unit,
		OutputLeft:    sl.outputLeft,
		PromptTokens:  sl.prompts,
	}
}

// Active writes into depth[slot], for each slot that has leading blocks of the
// prompt in use, how many; others are left as they are. depth has room for
// Slots. Without reuse assumed nothing is shared, and nothing is written.
func (t *Table) Active(blocks []uint64, depth []uint32) { t.tree.depths(blocks, depth) }

// Len returns how many bookings are live.
func (t *Table) Len() int { return len(t.live) }

// Parts returns how many bookings have another stage than 0.
func (t *Table) Parts() int { return t.parts }

// Has reports whether the booking is live.
func (t *Table) Has(k Key) bool { return t.live[k] != nil }

// Prefilling returns where the request is booked, and false if it is not live or its prefill is complete.
func (t *Table) Prefilling(k Key) (slot uint32, is bool) {
	if b := t.live[k]; b != nil {
		return b.slot, b.prefilling
	}
	return math.MaxUint32, false
}

// Add books a request on a slot that Slot or Keep returned. The error wraps
// ErrDuplicate. Negative numbers count as zero, and those beyond MaxCount as that; a
// Decay that is no number as none.
func (t *Table) Add(k Key, s uint32, r Request, now time.Time) error {
	if t.live[k] != nil {
		return fmt.Errorf("booking request %q: %w", k.ID, ErrDuplicate)
	}
	if int(s) >= len(t.slots) || !t.slots[s].used {
		return fmt.Errorf("booking request %q: slot %d is no rank's", k.ID, s)
	}
	var b *booking
	if n := len(t.ended); n > 0 {
		b, t.ended = t.ended[n-1], t.ended[:n-1]
	} else {
		b = new(booking)
	}
	decay := min(max(r.Decay, whole), 1)
	if math.IsNaN(decay) {
		decay = 0
	}
	*b = booking{
		key: k, serial: t.made, slot: s,
		prompt: count(r.PromptTokens), newTokens: count(r.NewTokens),
		private: count(r.Private), expected: count(r.ExpectedOutput),
		prefilling: !r.Prefilled, leased: r.Leased,
		decay: decay, progress: now,
	}
	t.made++
	sl := &t.slots[s]
	sl.requests++
	sl.prompts += b.prompt
	if b.prefilling {
		sl.prefilling++
		sl.prefill += b.newTokens
		t.queue(b, now)
	}
	if t.cfg.AssumeReuse {
		end, fresh := t.tree.add(s, r.Blocks)
		b.end = end
		sl.blocks += fresh
	} else {
		b.private += len(r.Blocks)
	}
	sl.blocks += b.private
	sl.outputLeft += b.expected
	t.live[k] = b
	if k.Stage != 0 {
		t.parts++
	}
	t.peak = max(t.peak, len(t.live))
	t.generate(b, r.Generated)
	if b.leased {
		t.append(b)
	}
	return nil
}

// PrefillComplete takes the request's prompt tokens off its rank: its first
// token is out. It reports whether the booking was live and prefilling.
func (t *Table) PrefillComplete(k Key, now time.Time) bool {
	b := t.live[k]
	if b == nil {
		return false
	}
	t.latest = later(t.latest, now)
	t.renew(b, now)
	return t.prefilled(b)
}

func (t *Table) prefilled(b *booking) bool {
	if !b.prefilling {
		return false
	}
	b.prefilling = false
	sl := &t.slots[b.slot]
	t.unqueue(b)
	sl.prefilling--
	sl.prefill -= b.newTokens
	return true
}

// Output records that n more tokens came out of the request. It reports
// whether that has filled a block, where output is tracked, and whether the
// booking is live.
func (t *Table) Output(k Key, n int, now time.Time) (changed, live bool) {
	b := t.live[k]
	if b == nil {
		return false, false
	}
	t.renew(b, now)
	before := b.outBlocks
	t.generate(b, n)
	return b.outBlocks != before, true
}

// OutputBlock records that the request has filled one more block with output;
// from now on its output blocks count weight each, 0 to 1. It is for callers
// that count blocks themselves.
func (t *Table) OutputBlock(k Key, weight float64, now time.Time) (live bool) {
	b := t.live[k]
	if b == nil {
		return false
	}
	if weight >= 0 && weight <= 1 {
		if b.decay = 1 - weight; weight == 1 {
			b.decay = whole
		}
	}
	t.renew(b, now)
	t.generate(b, t.cfg.BlockSize-(b.prompt+b.generated)%t.cfg.BlockSize)
	return true
}

// generate adds n tokens, if above 0, to what the request has generated.
func (t *Table) generate(b *booking, n int) {
	sl, size := &t.slots[b.slot], t.cfg.BlockSize
	sl.outputLeft -= max(b.expected-b.generated, 0)
	b.generated = count(b.generated + count(n))
	sl.outputLeft += max(b.expected-b.generated, 0)
	if !t.cfg.TrackOutput {
		return
	}
	b.outBlocks = (b.prompt+b.generated)/size - b.prompt/size
	weight := 1.0
	switch {
	case b.decay != 0:
		weight = 1 - max(b.decay, 0)
	case t.cfg.OutputDecay && b.expected > 0:
		weight = float64(max(b.expected-b.generated, 0)) / float64(b.expected)
	}
	output := int64(b.outBlocks) * int64(weight*unit)
	sl.output += output - b.output
	b.output = output
}

// Free ends the booking. It reports whether it was live.
func (t *Table) Free(k Key) bool {
	_, _, live := t.End(k)
	return live
}

// End ends the booking. It returns where it was, how many tokens it has generated, as
// Output said, and whether it was live; if not, a slot that nobody has.
func (t *Table) End(k Key) (slot uint32, generated int, live bool) {
	b := t.live[k]
	if b == nil {
		return math.MaxUint32, 0, false
	}
	t.end(b)
	t.release(b.slot)
	slot, generated = b.slot, b.generated
	if len(t.ended) < mostEnded {
		*b = booking{} // that names no request
		t.ended = append(t.ended, b)
	}
	return slot, generated, true
}

// end takes the booking out of every count.
func (t *Table) end(b *booking) {
	sl := &t.slots[b.slot]
	t.prefilled(b)
	sl.requests--
	sl.prompts -= b.prompt
	sl.blocks -= b.private
	if t.cfg.AssumeReuse {
		sl.blocks -= t.tree.remove(b.slot, b.end)
	}
	sl.output -= b.output
	sl.outputLeft -= max(b.expected-b.generated, 0)
	if b.leased {
		t.unlist(b)
	}
	delete(t.live, b.key)
	if b.key.Stage != 0 {
		t.parts--
	}
	if len(t.live) == 0 && t.peak > smallPeak {
		t.live, t.peak = make(map[Key]*booking), 0 // a map never shrinks
	}
}
