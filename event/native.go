package event

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// The native encoding, version 1, byte for byte, is in docs/wire-format.md.
const (
	nativeMagic   = "KVA"
	nativeVersion = 1

	typeBatch     = 1
	typeHeartbeat = 2

	flagCountCopies = 1 << 0
	// Of a heartbeat: a byte of flags follows each position.
	flagPositionFlags = 1 << 1
	// Of a batch: some events are of cache groups.
	flagGroups = 1 << 2

	positionIncomplete = 1 << 0

	// An event's head byte: kind and tier of two bits each, then flags. The kind 0 is of
	// a cache group other than 0: a byte follows, with the kind in its two lowest bits and
	// the group above.
	headKind      = 0b11
	groupShift    = 2
	headTierShift = 2
	headParent    = 1 << 4
	headAllTiers  = 1 << 5
	headLocal     = 1 << 6
	headLacks     = 1 << 7 // Event.Incomplete

	fixedHeader     = 32 // bytes before the model's name
	minEventBytes   = 4  // head, rank, id, number of hashes
	minHeartbeatPos = 2  // rank, id

	maxBlockSize = 1024
	// MaxName is the largest length in bytes of a model's or group's name in a
	// native message.
	MaxName = 1024
)

// ErrEncode is wrapped by what Check returns.
var ErrEncode = errors.New("batch cannot be encoded")

// Check returns nil if the batch (or heartbeat) has a native encoding, else an
// error that wraps ErrEncode and says what is wrong.
func (b *Batch) Check() error {
	if b == nil {
		return fmt.Errorf("%w: there is none", ErrEncode)
	}
	if b.Space.BlockSize < 1 || b.Space.BlockSize > maxBlockSize {
		return fmt.Errorf("%w: block size %d, give 1 to %d", ErrEncode, b.Space.BlockSize, maxBlockSize)
	}
	if len(b.Space.Model) > MaxName || len(b.Space.Group) > MaxName {
		return fmt.Errorf("%w: model or group name is longer than %d bytes", ErrEncode, MaxName)
	}
	if len(b.Events) > 0 && len(b.Last) > 0 {
		return fmt.Errorf("%w: a heartbeat carries no events", ErrEncode)
	}
	for i := range b.Last {
		if b.Last[i].DPRank == PoolRank {
			return fmt.Errorf("%w: %w", ErrEncode, errRank)
		}
	}
	for i := range b.Events {
		if err := b.Events[i].check(); err != nil {
			return fmt.Errorf("%w: event %d: %w", ErrEncode, i, err)
		}
	}
	return nil
}

// The reasons for which an event has no native encoding.
var (
	errKind        = errors.New("kind is not stored, removed or cleared")
	errRank        = fmt.Errorf("rank %d is that of pools, and nobody's", PoolRank)
	errTier        = errors.New("tier is unknown")
	errNotStored   = errors.New("only a stored event has a parent or local hashes")
	errNotCleared  = errors.New("only a cleared event covers all tiers, and it names no blocks")
	errGroup       = fmt.Errorf("blocks of cache groups are stored and removed by hash alone, and groups are below %d", MaxCacheGroups)
	errLocalHashes = errors.New("a stored event has one local hash per engine hash, or none at all")
)

func (ev *Event) check() error {
	switch {
	case ev.Kind < Stored || ev.Kind > Cleared:
		return errKind
	case ev.Tier >= NumTiers:
		return errTier
	case ev.DPRank == PoolRank:
		return errRank
	case ev.Kind != Stored && (ev.HasParent || len(ev.Local) > 0):
		return errNotStored
	case ev.Kind == Cleared && len(ev.Engine) > 0, ev.Kind != Cleared && ev.AllTiers:
		return errNotCleared
	case len(ev.Local) > 0 && len(ev.Local) != len(ev.Engine):
		return errLocalHashes
	case ev.Group >= MaxCacheGroups, ev.Group > 0 && (ev.HasParent || len(ev.Local) > 0 || ev.Kind == Cleared):
		return errGroup
	}
	return nil
}

// HeaderSize returns how many bytes the native encoding of b has before its
// events. It depends on the space only.
func HeaderSize(b *Batch) int {
	m, g := len(b.Space.Model), len(b.Space.Group)
	return fixedHeader + uvarintSize(uint64(m)) + m + uvarintSize(uint64(g)) + g + 4
}

// MaxEventSize returns the most bytes that ev adds to a native batch, so that
// a publisher can keep its messages below the server's maximum payload: a
// batch is at most HeaderSize plus the sum of its events' MaxEventSize.
func MaxEventSize(ev *Event) int {
	return 1 + uvarintSize(uint64(ev.DPRank)) + binary.MaxVarintLen64 + uvarintSize(uint64(len(ev.Engine))) +
		8 + 8*len(ev.Engine) + 8*len(ev.Local) + groupSize(ev)
}

// groupSize returns how many bytes the event's group takes.
func groupSize(ev *Event) int {
	if ev.Group > 0 {
		return 1
	}
	return 0
}

// EncodedSize returns the exact length in bytes of the native encoding of b.
func EncodedSize(b *Batch) int {
	n := HeaderSize(b)
	for _, p := range b.Last {
		n += uvarintSize(uint64(p.DPRank)) + uvarintSize(p.ID)
	}
	if b.incomplete() {
		n += len(b.Last)
	}
	last := uint64(0)
	for i := range b.Events {
		ev := &b.Events[i]
		n += 1 + uvarintSize(uint64(ev.DPRank)) + uvarintSize(ev.ID-last) + uvarintSize(uint64(len(ev.Engine))) +
			8*len(ev.Engine) + 8*len(ev.Local) + groupSize(ev)
		if ev.HasParent {
			n += 8
		}
		last = ev.ID
	}
	return n
}

// AppendBatch appends the native encoding of b to dst and returns it. It
// appends nothing for a batch that Check refuses; a caller whose batches come
// from outside calls Check first.
func AppendBatch(dst []byte, b *Batch) []byte {
	if b.Check() != nil || len(b.Last) > 0 {
		return dst
	}
	dst = appendHeader(dst, typeBatch, b)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(b.Events)))
	last := uint64(0)
	for i := range b.Events {
		dst = appendEvent(dst, &b.Events[i], last)
		last = b.Events[i].ID
	}
	return dst
}

// AppendHeartbeat appends the native encoding of the heartbeat to dst and
// returns it: who is alive, and the last event id of each of its ranks. Like
// AppendBatch it appends nothing for what Check refuses.
func AppendHeartbeat(dst []byte, b *Batch) []byte {
	if b.Check() != nil || len(b.Events) > 0 {
		return dst
	}
	dst = appendHeader(dst, typeHeartbeat, b)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(b.Last)))
	incomplete := b.incomplete()
	for _, p := range b.Last {
		dst = binary.AppendUvarint(dst, uint64(p.DPRank))
		dst = binary.AppendUvarint(dst, p.ID)
		switch {
		case p.Incomplete:
			dst = append(dst, positionIncomplete)
		case incomplete:
			dst = append(dst, 0)
		}
	}
	return dst
}

// incomplete reports whether a rank of the heartbeat is incomplete.
func (b *Batch) incomplete() bool {
	return slices.ContainsFunc(b.Last, func(p Position) bool { return p.Incomplete })
}

func appendHeader(dst []byte, kind byte, b *Batch) []byte {
	var flags byte
	if b.CountCopies {
		flags |= flagCountCopies
	}
	if b.incomplete() {
		flags |= flagPositionFlags
	}
	if slices.ContainsFunc(b.Events, func(ev Event) bool { return ev.Group > 0 }) {
		flags |= flagGroups
	}
	dst = append(dst, nativeMagic...)
	dst = append(dst, nativeVersion, kind, flags)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(b.Space.BlockSize))
	dst = binary.LittleEndian.AppendUint64(dst, b.Worker)
	dst = binary.LittleEndian.AppendUint64(dst, b.Incarnation)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(b.Published))
	for _, name := range [...]string{b.Space.Model, b.Space.Group} {
		dst = binary.AppendUvarint(dst, uint64(len(name)))
		dst = append(dst, name...)
	}
	return dst
}

func appendEvent(dst []byte, ev *Event, lastID uint64) []byte {
	head := byte(ev.Tier) << headTierShift
	if ev.Group == 0 {
		head |= byte(ev.Kind)
	}
	if ev.HasParent {
		head |= headParent
	}
	if ev.AllTiers {
		head |= headAllTiers
	}
	if len(ev.Local) > 0 {
		head |= headLocal
	}
	if ev.Incomplete {
		head |= headLacks
	}
	dst = append(dst, head)
	if ev.Group > 0 {
		dst = append(dst, byte(ev.Kind)|ev.Group<<groupShift)
	}
	dst = binary.AppendUvarint(dst, uint64(ev.DPRank))
	dst = binary.AppendUvarint(dst, ev.ID-lastID) // wraps, as the decoder's sum does
	dst = binary.AppendUvarint(dst, uint64(len(ev.Engine)))
	if ev.HasParent {
		dst = binary.LittleEndian.AppendUint64(dst, ev.Parent)
	}
	for _, h := range ev.Engine {
		dst = binary.LittleEndian.AppendUint64(dst, h)
	}
	for _, h := range ev.Local {
		dst = binary.LittleEndian.AppendUint64(dst, h)
	}
	return dst
}

// uvarintSize returns how many bytes x takes as a varint of seven bits a byte.
func uvarintSize(x uint64) int { return (bits.Len64(x|1) + 6) / 7 }
