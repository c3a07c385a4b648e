package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// The messages, byte for byte, are in docs/wire-format.md.
const (
	magic      = "KVR"
	version    = 1
	headerSize = len(magic) + 2 + 3*8

	typeChanges   = 1
	typeHeartbeat = 2
	typeWanted    = 3
	typeSnapshot  = 4
	typeLeaving   = 5
	typeBids      = 6
	typeFetches   = 7
	typeFailing   = 8

	// minChange is the least bytes of a change.
	minChange = 3
	// maxCount bounds numbers that are counted with.
	maxCount = math.MaxInt32
)

// ErrMalformed is wrapped by the errors about messages that cannot be read.
var ErrMalformed = errors.New("malformed replica message")

type header struct {
	kind                byte
	scope, from, number uint64
}

func (h header) append(dst []byte) []byte {
	dst = append(dst, magic...)
	dst = append(dst, version, h.kind)
	dst = binary.LittleEndian.AppendUint64(dst, h.scope)
	dst = binary.LittleEndian.AppendUint64(dst, h.from)
	return binary.LittleEndian.AppendUint64(dst, h.number)
}

func readHeader(msg []byte) (h header, rest []byte, err error) {
	if len(msg) < headerSize || string(msg[:len(magic)]) != magic {
		return h, nil, fmt.Errorf("%w: no header", ErrMalformed)
	}
	if msg[3] != version {
		return h, nil, fmt.Errorf("%w: version %d, this build reads %d: run routers of one version", ErrMalformed, msg[3], version)
	}
	h.kind = msg[4]
	h.scope = binary.LittleEndian.Uint64(msg[5:])
	h.from = binary.LittleEndian.Uint64(msg[13:])
	h.number = binary.LittleEndian.Uint64(msg[21:])
	return h, msg[headerSize:], nil
}

// appendChange encodes a change in at most limit bytes, if its id allows that:
// blocks that do not fit are told as a number only.
func appendChange(dst []byte, c *load.Change, limit int) []byte {
	start := len(dst)
	dst = append(dst, byte(c.Kind), c.Key.Stage)
	dst = binary.AppendUvarint(dst, uint64(len(c.Key.ID)))
	dst = append(dst, c.Key.ID...)
	switch c.Kind {
	case load.Added:
		r := &c.Request
		dst = binary.LittleEndian.AppendUint64(dst, c.Rank.Worker)
		dst = binary.AppendUvarint(dst, uint64(c.Rank.DPRank))
		prefilled := byte(0)
		if r.Prefilled {
			prefilled = 1
		}
		dst = append(dst, prefilled)
		blocks := r.Blocks
		// Six numbers of at most five bytes, the decay, the hashes.
		room := max(0, (limit-(len(dst)-start)-6*binary.MaxVarintLen32-8)/8)
		private := r.Private
		if len(blocks) > room {
			private += len(blocks) - room
			blocks = blocks[:room]
		}
		for _, n := range [...]int{r.PromptTokens, r.NewTokens, r.ExpectedOutput, r.Generated, private} {
			dst = binary.AppendUvarint(dst, uint64(min(max(n, 0), maxCount)))
		}
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(r.Decay))
		dst = binary.AppendUvarint(dst, uint64(len(blocks)))
		for _, b := range blocks {
			dst = binary.LittleEndian.AppendUint64(dst, b)
		}
	case load.Fetched, load.Failing:
		dst = binary.LittleEndian.AppendUint64(dst, c.Rank.Worker)
		dst = binary.AppendUvarint(dst, uint64(c.Rank.DPRank))
	case load.Generated:
		dst = binary.AppendUvarint(dst, uint64(min(max(c.Tokens, 0), maxCount)))
	case load.Filled:
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(c.Weight))
	case load.Sought:
		held := byte(0)
		if c.Held {
			held = 1
		}
		dst = append(dst, held)
		for _, n := range [...]int{int(c.Waited / time.Millisecond), c.Request.PromptTokens, len(c.Ranks)} {
			dst = binary.AppendUvarint(dst, uint64(min(max(n, 0), maxCount)))
		}
		for _, w := range c.Ranks {
			dst = binary.LittleEndian.AppendUint64(dst, w.Rank.Worker)
			dst = binary.AppendUvarint(dst, uint64(w.Rank.DPRank))
			dst = binary.AppendUvarint(dst, uint64(min(max(w.NewTokens, 0), maxCount)))
		}
	}
	return dst
}

// reader reads what one router says about its bookings. The first fault stays
// in err, and everything read after it is zero.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrMalformed, what)
	}
	r.rest = nil
}

func (r *reader) bytes(n int) []byte {
	if n > len(r.rest) {
		r.fail("it ends too early")
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// uvarint reads a number of at most limit.
func (r *reader) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || v > limit {
		r.fail("a number is out of range")
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) count() int { return int(r.uvarint(maxCount)) }

// part reads a float from 0 to 1, or a negative one for none.
func (r *reader) part() float64 {
	f := math.Float64frombits(r.u64())
	if !(f <= 1) || math.IsInf(f, 0) {
		r.fail("a part is out of range")
		return 0
	}
	return f
}

// changes reads all that is left as changes of the owner's bookings.
func (r *reader) changes(owner uint64) []load.Change {
	list := make([]load.Change, 0, min(len(r.rest)/minChange, 64))
	for len(r.rest) > 0 {
		list = append(list, r.change(owner))
	}
	return list
}

func (r *reader) change(owner uint64) (c load.Change) {
	c.Kind = load.Kind(r.byte())
	c.Key = load.Key{Owner: owner, Stage: r.byte()}
	c.Key.ID = string(r.bytes(int(r.uvarint(uint64(len(r.rest))))))
	switch c.Kind {
	case load.Added:
		c.Rank = shard.RankID{Worker: r.u64(), DPRank: uint32(r.uvarint(math.MaxUint32))}
		q := &c.Request
		q.Prefilled = r.byte() == 1
		for _, n := range [...]*int{&q.PromptTokens, &q.NewTokens, &q.ExpectedOutput, &q.Generated, &q.Private} {
			*n = r.count()
		}
		q.Decay = r.part()
		n := int(r.uvarint(uint64(len(r.rest) / 8)))
		if n == 0 {
			break
		}
		q.Blocks = make([]uint64, n)
		for i := range q.Blocks {
			q.Blocks[i] = r.u64()
		}
	case load.Fetched, load.Failing:
		c.Rank = shard.RankID{Worker: r.u64(), DPRank: uint32(r.uvarint(math.MaxUint32))}
	case load.Generated:
		c.Tokens = r.count()
	case load.Filled:
		c.Weight = r.part()
	case load.Sought:
		c.Held = r.byte() == 1
		c.Waited = time.Duration(r.count()) * time.Millisecond
		c.Request.PromptTokens = r.count()
		const least = 10 // bytes of a rank
		for range r.uvarint(uint64(len(r.rest) / least)) {
			c.Ranks = append(c.Ranks, load.Want{Rank: shard.RankID{Worker: r.u64(), DPRank: uint32(r.uvarint(math.MaxUint32))}, NewTokens: r.count()})
		}
	case load.Prefilled, load.Freed:
	default:
		r.fail("a change of unknown kind")
	}
	return c
}
