package event

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// decodeNative fills b from the native message. Events and hashes go to d's
// arenas; a declared length is trusted only as far as the bytes that remain.
func (d *Decoder) decodeNative(b *Batch, msg []byte) error {
	kind, rest, err := d.nativeHeader(b, msg)
	if err != nil {
		return err
	}
	if len(rest) < 4 {
		return fmt.Errorf("%w: no event count", ErrTruncated)
	}
	count := int64(binary.LittleEndian.Uint32(rest))
	rest = rest[4:]
	if kind == typeHeartbeat {
		rest, err = d.nativePositions(b, rest, count, msg[5]&flagPositionFlags != 0)
	} else {
		rest, err = d.nativeEvents(b, rest, count)
	}
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("%w: %d bytes after the last event", ErrMalformed, len(rest))
	}
	return nil
}

func (d *Decoder) nativeHeader(b *Batch, msg []byte) (kind byte, rest []byte, err error) {
	if len(msg) < fixedHeader {
		return 0, nil, fmt.Errorf("%w: the header alone has %d bytes", ErrTruncated, fixedHeader)
	}
	if string(msg[:3]) != nativeMagic {
		return 0, nil, fmt.Errorf("%w: it does not begin with %s", ErrFormat, nativeMagic)
	}
	if msg[3] != nativeVersion {
		return 0, nil, fmt.Errorf("%w: %d, this build reads %d", ErrVersion, msg[3], nativeVersion)
	}
	kind = msg[4]
	if kind != typeBatch && kind != typeHeartbeat {
		return 0, nil, fmt.Errorf("%w: message type %d", ErrVersion, kind)
	}
	known := byte(flagCountCopies)
	if kind == typeHeartbeat {
		known |= flagPositionFlags
	} else {
		known |= flagGroups
	}
	if unknown := msg[5] &^ known; unknown != 0 {
		return 0, nil, fmt.Errorf("%w: message flags %#x", ErrVersion, unknown)
	}
	b.CountCopies = msg[5]&flagCountCopies != 0
	b.Space.BlockSize = uint32(binary.LittleEndian.Uint16(msg[6:]))
	if b.Space.BlockSize < 1 || b.Space.BlockSize > maxBlockSize {
		return 0, nil, fmt.Errorf("%w: block size %d", ErrMalformed, b.Space.BlockSize)
	}
	b.Worker = binary.LittleEndian.Uint64(msg[8:])
	b.Incarnation = binary.LittleEndian.Uint64(msg[16:])
	b.Published = int64(binary.LittleEndian.Uint64(msg[24:]))
	rest = msg[fixedHeader:]
	for _, name := range [...]*string{&b.Space.Model, &b.Space.Group} {
		n, after, err := uvarint(rest)
		if err != nil {
			return 0, nil, err
		}
		if n > MaxName {
			return 0, nil, fmt.Errorf("%w: a name of %d bytes", ErrMalformed, n)
		}
		if n > uint64(len(after)) {
			return 0, nil, fmt.Errorf("%w: in a name", ErrTruncated)
		}
		*name, rest = d.name(after[:n]), after[n:]
	}
	return kind, rest, nil
}

func (d *Decoder) nativePositions(b *Batch, rest []byte, count int64, flags bool) ([]byte, error) {
	if count > int64(len(rest)/minHeartbeatPos) {
		return nil, fmt.Errorf("%w: %d ranks in %d bytes", ErrTruncated, count, len(rest))
	}
	for range count {
		rank, after, err := uvarint(rest)
		if err != nil {
			return nil, err
		}
		if rank >= uint64(PoolRank) { // that of pools, and nobody's
			return nil, fmt.Errorf("%w: rank %d", ErrMalformed, rank)
		}
		var id uint64
		if id, rest, err = uvarint(after); err != nil {
			return nil, err
		}
		p := Position{DPRank: uint32(rank), ID: id}
		if flags {
			if len(rest) == 0 {
				return nil, fmt.Errorf("%w: no flags of a rank", ErrTruncated)
			}
			if rest[0]&^positionIncomplete != 0 {
				return nil, fmt.Errorf("%w: flags of a rank %#x", ErrVersion, rest[0])
			}
			p.Incomplete, rest = rest[0] != 0, rest[1:]
		}
		d.last = append(d.last, p)
	}
	b.Last = d.last
	return rest, nil
}

func (d *Decoder) nativeEvents(b *Batch, rest []byte, count int64) ([]byte, error) {
	if count > int64(len(rest)/minEventBytes) {
		return nil, fmt.Errorf("%w: %d events in %d bytes", ErrTruncated, count, len(rest))
	}
	d.events = slices.Grow(d.events, int(count))
	// Room for every hash that the message can hold: growing later would leave
	// earlier events in the old arena.
	d.hashes = slices.Grow(d.hashes, len(rest)/8)
	var id uint64
	var err error
	for i := range count {
		d.events = append(d.events, Event{})
		ev := &d.events[i]
		if rest, err = d.nativeEvent(ev, rest, id); err != nil {
			return nil, fmt.Errorf("event %d: %w", i, err)
		}
		id = ev.ID
	}
	b.Events = d.events
	return rest, nil
}

func (d *Decoder) nativeEvent(ev *Event, b []byte, lastID uint64) (rest []byte, err error) {
	if len(b) < minEventBytes {
		return nil, ErrTruncated
	}
	head := b[0]
	ev.Kind = Kind(head & headKind)
	ev.Tier = Tier(head >> headTierShift & (NumTiers - 1))
	ev.HasParent = head&headParent != 0
	ev.AllTiers = head&headAllTiers != 0
	ev.Incomplete = head&headLacks != 0
	b = b[1:]
	if ev.Kind == 0 {
		ev.Kind, ev.Group = Kind(b[0]&headKind), b[0]>>groupShift
		if b = b[1:]; ev.Group == 0 {
			return nil, fmt.Errorf("%w: %w", ErrMalformed, errKind)
		}
	}
	rank, b, err := uvarint(b)
	if err != nil {
		return nil, err
	}
	if rank >= uint64(PoolRank) { // that of pools, and nobody's
		return nil, fmt.Errorf("%w: rank %d", ErrMalformed, rank)
	}
	ev.DPRank = uint32(rank)
	delta, b, err := uvarint(b)
	if err != nil {
		return nil, err
	}
	ev.ID = lastID + delta
	n, b, err := uvarint(b)
	if err != nil {
		return nil, err
	}
	if ev.HasParent {
		if len(b) < 8 {
			return nil, fmt.Errorf("%w: no parent hash", ErrTruncated)
		}
		ev.Parent, b = binary.LittleEndian.Uint64(b), b[8:]
	}
	arrays := uint64(1)
	if head&headLocal != 0 {
		arrays = 2
	}
	if n > uint64(len(b))/8/arrays {
		return nil, fmt.Errorf("%w: %d hashes in %d bytes", ErrTruncated, n, len(b))
	}
	ev.Engine, b = d.takeHashes(b, int(n))
	if head&headLocal != 0 {
		if ev.Kind != Stored || n == 0 {
			return nil, fmt.Errorf("%w: %w", ErrMalformed, errNotStored)
		}
		ev.Local, b = d.takeHashes(b, int(n))
	}
	if err := ev.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return b, nil
}

// takeHashes copies n little-endian u64 from b to the arena, which has the
// room; b has the bytes.
func (d *Decoder) takeHashes(b []byte, n int) (hashes []uint64, rest []byte) {
	if n == 0 {
		return nil, b
	}
	start := len(d.hashes)
	d.hashes = d.hashes[:start+n]
	hashes = d.hashes[start : start+n : start+n]
	for i := range hashes {
		hashes[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return hashes, b[8*n:]
}

// uvarint reads a varint of at most ten bytes.
func uvarint(b []byte) (v uint64, rest []byte, err error) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), b[1:], nil
	}
	v, n := binary.Uvarint(b)
	switch {
	case n > 0:
		return v, b[n:], nil
	case n == 0:
		return 0, nil, fmt.Errorf("%w: in a number", ErrTruncated)
	}
	return 0, nil, fmt.Errorf("%w: a number above 64 bits", ErrMalformed)
}
