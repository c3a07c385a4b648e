package sidecar

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/groups"
	"github.com/kvatlas/kvatlas/event"
)

// A kept state, version 3 where cache groups are followed, else 2, little-endian: "KVPS", the version (u32), identity,
// incarnation and last id (u64 each), flags (u8, 1: incomplete, 2: Eagle, 4: hybrid, 8: blocks of cache groups
// are not known), the position
// (u32 length, bytes), the entries of the index's dump, and the XXH3-64 of all
// that. An entry is an event of core.Index.Dump, recovery.Orphans.Dump or groups.Table.Dump:
// tier (of version 3 with the group in its upper four bits) and flags (u8 each, 1: it has a parent, 2: it has local hashes, 4: it is an orphan),
// parent (u64), the number of blocks
// (u32), their engine hashes, local hashes if any (u64 each) and copies (u32
// each).
//
// The version changes with the format, and with anything that makes the same
// batches give other events: ids would then mean two things.
const (
	stateMagic   = "KVPS"
	stateVersion = 3
	plainVersion = 2
	stateHeader  = 4 + 4 + 8 + 8 + 8 + 1
	stateSum     = 8
	entryHeader  = 1 + 1 + 8 + 4
	maxCopies    = 1 << 16 // of a block; more is damage
)

// errState is wrapped by decodeState's errors.
var errState = errors.New("the kept state is unusable")

// state is what outlives the process.
type state struct {
	identity    uint64 // of the settings that give events their meaning
	incarnation uint64
	last        uint64 // id of the last event
	incomplete  bool
	eagle       bool   // blocks are hashed with the token after each
	hybrid      bool   // there are cache groups that are not indexed
	position    []byte // of the input, after the last batch in the index
	set         *set
}

// appendState appends the encoding of st to dst.
func appendState(dst []byte, st *state) []byte {
	le := binary.LittleEndian
	start := len(dst)
	dst = append(dst, stateMagic...)
	version := uint32(plainVersion)
	if st.set.groups != nil || st.set.ungrouped {
		version = stateVersion
	}
	dst = le.AppendUint32(dst, version)
	dst = le.AppendUint64(dst, st.identity)
	dst = le.AppendUint64(dst, st.incarnation)
	dst = le.AppendUint64(dst, st.last)
	flags := byte(0)
	if st.incomplete {
		flags = 1
	}
	if st.eagle {
		flags |= 2
	}
	if st.hybrid {
		flags |= 4
	}
	if st.set.ungrouped {
		flags |= 8
	}
	dst = append(dst, flags)
	dst = le.AppendUint32(dst, uint32(len(st.position)))
	dst = append(dst, st.position...)
	add := func(ev *event.Event, copies []uint32) {
		flags := byte(0)
		if ev.HasParent {
			flags |= 1
		}
		if len(ev.Local) > 0 {
			flags |= 2
		}
		if ev.Incomplete {
			flags |= 4
		}
		dst = append(dst, byte(ev.Tier)|ev.Group<<4, flags)
		dst = le.AppendUint64(dst, ev.Parent)
		dst = le.AppendUint32(dst, uint32(len(ev.Engine)))
		for _, h := range ev.Engine {
			dst = le.AppendUint64(dst, h)
		}
		for _, h := range ev.Local {
			dst = le.AppendUint64(dst, h)
		}
		for _, c := range copies {
			dst = le.AppendUint32(dst, c)
		}
	}
	if st.set.groups != nil {
		st.set.groups.Dump(add)
	}
	st.set.index.Dump(holder, func(ev *event.Event, copies []uint32) bool {
		add(ev, copies)
		return true
	})
	st.set.orphans.Dump(add)
	return le.AppendUint64(dst, xxh3.Hash(dst[start:]))
}

// decodeState is the inverse of appendState.
func decodeState(b []byte) (*state, error) {
	le := binary.LittleEndian
	if len(b) < stateHeader+4+stateSum || string(b[:4]) != stateMagic {
		return nil, fmt.Errorf("%w: %d bytes that are no state", errState, len(b))
	}
	version := le.Uint32(b[4:])
	if version != plainVersion && version != stateVersion {
		return nil, fmt.Errorf("%w: it has version %d, this program knows %d and %d", errState, version, plainVersion, stateVersion)
	}
	b, sum := b[:len(b)-stateSum], le.Uint64(b[len(b)-stateSum:])
	if xxh3.Hash(b) != sum {
		return nil, fmt.Errorf("%w: its checksum is wrong", errState)
	}
	st := &state{
		identity: le.Uint64(b[8:]), incarnation: le.Uint64(b[16:]), last: le.Uint64(b[24:]),
		incomplete: b[32]&1 != 0, eagle: b[32]&2 != 0, hybrid: b[32]&4 != 0, set: newSet(),
	}
	// Of before groups were told apart: what they hold is not in it.
	st.set.ungrouped = version == plainVersion && st.hybrid || b[32]&8 != 0
	n := int64(le.Uint32(b[stateHeader:]))
	b = b[stateHeader+4:]
	if int64(len(b)) < n {
		return nil, fmt.Errorf("%w: the position is cut off", errState)
	}
	st.position, b = b[:n:n], b[n:]
	r := core.Restorer{Index: st.set.index, Holder: holder}
	for len(b) > 0 {
		rest, err := restoreEntry(&r, st.set, b)
		if err != nil {
			return nil, err
		}
		b = rest
	}
	r.Finish()
	if st.set.groups != nil {
		st.set.groups.Restored()
	}
	return st, nil
}

// restoreEntry reads one entry into the index and returns what follows it.
func restoreEntry(r *core.Restorer, s *set, b []byte) ([]byte, error) {
	le := binary.LittleEndian
	if len(b) < entryHeader {
		return nil, fmt.Errorf("%w: an entry is cut off", errState)
	}
	ev := event.Event{Kind: event.Stored, Tier: event.Tier(b[0] & 0xf), Group: b[0] >> 4, HasParent: b[1]&1 != 0, Incomplete: b[1]&4 != 0, Parent: le.Uint64(b[2:])}
	n, local := int64(le.Uint32(b[10:])), b[1]&2 != 0
	size := 12 * n
	if local {
		size += 8 * n
	}
	b = b[entryHeader:]
	if int64(len(b)) < size || ev.Tier >= event.NumTiers {
		return nil, fmt.Errorf("%w: an entry of %d blocks in %d bytes, tier %d", errState, n, len(b), ev.Tier)
	}
	hashes := func() []uint64 {
		list := make([]uint64, n)
		for i := range list {
			list[i] = le.Uint64(b[8*i:])
		}
		b = b[8*n:]
		return list
	}
	ev.Engine = hashes()
	if local {
		ev.Local = hashes()
	}
	copies := make([]uint32, n)
	for i := range copies {
		if copies[i] = le.Uint32(b[4*i:]); copies[i] > maxCopies {
			return nil, fmt.Errorf("%w: a block has %d copies", errState, copies[i])
		}
	}
	switch {
	case ev.Group > 0:
		if s.groups == nil {
			s.groups = groups.NewTable()
		}
		s.groups.Restore(&ev, copies)
	case ev.Incomplete:
		s.orphans.Restore(&ev, copies)
	default:
		r.Add(&ev, copies)
	}
	return b[4*n:], nil
}
