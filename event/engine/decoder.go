package engine

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/wire/msgpack"
)

// Config holds a Decoder's settings.
type Config struct {
	// BlockSize is the space's block size in tokens, 1 … blockhash.MaxBlockSize.
	// Stores with another one are left out.
	BlockSize int
	// Rank is the dp_rank of batches that name none.
	Rank uint32
	// Eagle says that the engine hashes one token beyond each block, as
	// requests of this space are then hashed too. Where the tokens come as pairs they say
	// it themselves.
	Eagle bool
	// Lora and Salt are those of chains that name none, as registered.
	Lora, Salt string
	// Loras are the names of adapters by their number, for events that give no more than
	// that (vLLM up to 0.13). Without a name here or in Lora their blocks are left out:
	// the content of an adapter's blocks is its name's, too.
	Loras map[int64]string
	// Remote takes blocks of vLLM's locality REMOTE for ones of external storage: a pool's
	// that the worker's registration names. Else they are left out.
	Remote bool
	// MaxChains bounds how many blocks of salted chains, LoRA chains and
	// chains left out are remembered for their children: at least this many
	// and at most twice as many, some 50 bytes each. 0 means 262,144.
	MaxChains int
}

// Decoder decodes the payloads of one engine stream, in order. It is not safe
// for concurrent use.
type Decoder struct {
	cfg    Config
	chains chains
	groups cacheGroups
	named  map[int64]uint64 // what Config.Loras add to the seed
	loras  addends
	salts  addends
	stats  Stats
	salted bool // some blocks were of prompts that the engine was sent a salt with

	// Of one payload:
	batch  event.Batch
	events []event.Event
	spans  []span   // one per event
	hashes []uint64 // arena of engine hashes
	locals []uint64 // arena of local hashes
	tokens []uint32 // of one event
	eagles []uint32 // of one block and beyond
	pair   []uint32 // of one position, where tokens come as pairs
	mm     []uint64 // of one block
}

// span is where an event's hashes lie in the arenas.
type span struct{ engineAt, engineTo, localAt, localTo int }

// NewDecoder returns a Decoder for one stream.
func NewDecoder(cfg Config) (*Decoder, error) {
	if err := blockhash.CheckBlockSize(cfg.BlockSize); err != nil {
		return nil, err
	}
	if cfg.MaxChains <= 0 {
		cfg.MaxChains = 1 << 18
	}
	d := &Decoder{cfg: cfg, chains: chains{limit: cfg.MaxChains}}
	if cfg.Lora != "" {
		d.chains.usual.lora = seedOfLora(cfg.Lora)
	}
	d.named = make(map[int64]uint64, len(cfg.Loras))
	for id, name := range cfg.Loras {
		d.named[id] = seedOfLora(name)
	}
	if cfg.Salt != "" {
		d.chains.usual.salt = seedOfSalt(cfg.Salt)
	}
	return d, nil
}

// Stats returns what the decoder has left out since it was made.
func (d *Decoder) Stats() Stats { return d.stats }

// Salted reports whether some blocks were of salted prompts since it was made.
func (d *Decoder) Salted() bool { return d.salted }

// left counts n things left out of the current payload.
func (d *Decoder) left(why Reason, n int) {
	d.stats[why] += uint64(n)
	if why < Malformed {
		d.batch.Filtered += n
	}
}

// Decode decodes a payload: the last frame of an engine's message. The batch
// has neither space, worker and incarnation nor event ids: those are the
// caller's to give. Copies are counted. An error (it wraps event.ErrTruncated
// or event.ErrMalformed) means that the payload as a whole is unusable; of
// events that are, see Stats.
func (d *Decoder) Decode(payload []byte) (*event.Batch, error) {
	d.batch = event.Batch{CountCopies: true}
	d.events, d.spans = emptied(d.events, keptEvents), emptied(d.spans, keptEvents)
	d.hashes, d.locals, d.mm = emptied(d.hashes, keptHashes), emptied(d.locals, keptHashes), emptied(d.mm, keptHashes)
	d.tokens, d.eagles, d.pair = emptied(d.tokens, keptTokens), emptied(d.eagles, keptTokens), emptied(d.pair, keptTokens)
	stats := d.stats
	r := msgpack.NewReader(payload)
	rank := d.payload(&r)
	if rank == event.PoolRank {
		r.Fail(fmt.Errorf("rank %d is that of pools, and nobody's", rank))
	}
	if err := r.Err(); err != nil {
		d.stats = stats
		reason := event.ErrMalformed
		if errors.Is(err, msgpack.ErrTruncated) {
			reason = event.ErrTruncated
		}
		return nil, fmt.Errorf("engine payload of %d bytes: %w: %w", len(payload), reason, err)
	}
	for i := range d.events {
		ev, s := &d.events[i], d.spans[i]
		ev.DPRank = rank
		if s.engineTo > s.engineAt {
			ev.Engine = d.hashes[s.engineAt:s.engineTo:s.engineTo]
		}
		if s.localTo > s.localAt {
			ev.Local = d.locals[s.localAt:s.localTo:s.localTo]
		}
	}
	d.batch.Events, d.batch.Hybrid, d.batch.Groups = d.events, d.groups.hybrid, d.groups.told()
	return &d.batch, nil
}

// How much memory is kept for the next payload: for a prompt of a million tokens in blocks of 16, and more
// events than engines send at once. What a larger one took goes with the next.
const (
	keptEvents = 1 << 12
	keptHashes = 1 << 17
	keptTokens = 1 << 20
)

func emptied[T any](s []T, most int) []T {
	if cap(s) > most {
		return nil
	}
	return s[:0]
}

// payload reads [ts, events, rank, …] or, defensively, the same as a map.
func (d *Decoder) payload(r *msgpack.Reader) (rank uint32) {
	rank = d.cfg.Rank
	if r.Kind() != msgpack.Map {
		n := r.Array()
		if r.Err() == nil && n < 2 {
			r.Fail(fmt.Errorf("%w: a batch of %d elements, want 2 at least", event.ErrMalformed, n))
		}
		for i := 0; i < n && r.Err() == nil; i++ {
			switch i {
			case 0:
				d.batch.Published = timestamp(r)
			case 1:
				d.readEvents(r)
			case 2:
				rank = readRank(r, rank)
			default:
				r.Skip()
			}
		}
	} else {
		for i, n := 0, r.Map(); i < n && r.Err() == nil; i++ {
			switch string(r.Str()) {
			case "ts":
				d.batch.Published = timestamp(r)
			case "events":
				d.readEvents(r)
			case "data_parallel_rank", "attn_dp_rank", "dp_rank":
				rank = readRank(r, rank)
			default:
				r.Skip()
			}
		}
	}
	if r.Err() == nil && r.Len() > 0 {
		r.Fail(fmt.Errorf("%w: %d bytes after the batch", event.ErrMalformed, r.Len()))
	}
	return rank
}

// readRank reads a rank, or a nil for the one given.
func readRank(r *msgpack.Reader, rank uint32) uint32 {
	if r.Nil() {
		return rank
	}
	return r.Uint32()
}

// timestamp reads a time of publishing as Unix nanoseconds: float seconds, or
// integer milliseconds (Mooncake), or nil for unknown.
func timestamp(r *msgpack.Reader) int64 {
	unit := time.Second
	switch r.Kind() {
	case msgpack.Nil:
		r.Nil()
		return 0
	case msgpack.Int:
		unit = time.Millisecond
	}
	whole, part := math.Modf(r.Float64())
	if !(whole >= 0 && whole < float64(math.MaxInt64/unit)) { // not a number, or no time of this era
		return 0
	}
	return int64(whole)*int64(unit) + int64(part*float64(unit))
}

// readEvents reads the array of events, each an array or a map of its own.
func (d *Decoder) readEvents(r *msgpack.Reader) {
	if r.Nil() {
		return
	}
	n := r.Array()
	d.events = slices.Grow(d.events, min(n, r.Len()/16+1))
	for i := 0; i < n && r.Err() == nil; i++ {
		start := *r
		var f fields
		f.engineAt, f.localAt = len(d.hashes), len(d.locals)
		f.read(d, r)
		if r.Err() != nil {
			// The event may only have a field of an unexpected type.
			*r = start
			if r.Skip(); r.Err() != nil {
				return
			}
			d.lose(&f)
			continue
		}
		d.toEvent(&f)
	}
}

// lose leaves out an event of which it is not known what it did.
func (d *Decoder) lose(f *fields) {
	d.drop(f)
	d.left(Malformed, 1)
	d.batch.Lost++
}

// drop forgets an event's hashes.
func (d *Decoder) drop(f *fields) {
	d.hashes, d.locals = d.hashes[:f.engineAt], d.locals[:f.localAt]
}

// add appends an event with the hashes that lie after f's marks.
func (d *Decoder) add(f *fields, ev event.Event) {
	d.events = append(d.events, ev)
	d.spans = append(d.spans, span{f.engineAt, len(d.hashes), f.localAt, len(d.locals)})
}
