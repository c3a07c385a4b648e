package engine

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// A decoder's state, version 2: "KVE", the version, a kind for each of
// maxGroups cache groups, which one is the main one and 1 (u8), the length (u32) of what
// was said of them and that as JSON, the number of chains (u32) and the chains: engine
// hash, what LoRA and salt add to the seed (u64 each), left out or not (u8).
// Numbers are little-endian. Version 1 has no more than the kinds of groups.
const (
	stateMagic   = "KVE"
	stateVersion = 2
	stateHeader  = 4 + maxGroups + 4
	stateChain   = 8 + 8 + 8 + 1
)

// ErrState is wrapped by what RestoreState returns.
var ErrState = errors.New("decoder state is unusable")

// AppendState appends to dst what the decoder remembers of its stream: salts
// and LoRA names by block, and cache groups. Whoever keeps the stream's index
// over a restart keeps this with it, or children of salted blocks would be
// taken for plain content.
func (d *Decoder) AppendState(dst []byte) []byte {
	dst = append(append(dst, stateMagic...), stateVersion)
	for _, g := range d.groups.kinds {
		dst = append(dst, byte(g))
	}
	said, _ := json.Marshal(d.groups.list) // numbers and texts
	dst = append(dst, byte(d.groups.main))
	dst = append(binary.LittleEndian.AppendUint32(dst, uint32(len(said))), said...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(d.chains.old)+len(d.chains.now)))
	for _, generation := range [...]map[uint64]chain{d.chains.old, d.chains.now} { // oldest first
		for h, st := range generation {
			dst = binary.LittleEndian.AppendUint64(dst, h)
			dst = binary.LittleEndian.AppendUint64(dst, st.lora)
			dst = binary.LittleEndian.AppendUint64(dst, st.salt)
			left := byte(0)
			if st.left {
				left = 1
			}
			dst = append(dst, left)
		}
	}
	return dst
}

// RestoreState makes the decoder remember what AppendState wrote, and nothing
// else. After an error, which wraps ErrState, the decoder is as it was.
func (d *Decoder) RestoreState(b []byte) error {
	if len(b) < stateHeader {
		return fmt.Errorf("%w: %d bytes, want %d at least", ErrState, len(b), stateHeader)
	}
	if string(b[:3]) != stateMagic || b[3] < 1 || b[3] > stateVersion {
		return fmt.Errorf("%w: it begins with %q, want %q and version %d", ErrState, b[:4], stateMagic, stateVersion)
	}
	groups, b, err := restoreGroups(b[4:], b[3])
	if err != nil {
		return err
	}
	if len(b) < 4 {
		return fmt.Errorf("%w: no number of chains", ErrState)
	}
	n := int64(binary.LittleEndian.Uint32(b))
	b = b[4:]
	if int64(len(b)) != n*stateChain {
		return fmt.Errorf("%w: %d bytes of %d chains, want %d", ErrState, len(b), n, n*stateChain)
	}
	restored := chains{limit: d.chains.limit}
	for ; len(b) > 0; b = b[stateChain:] {
		if b[24] > 1 {
			return fmt.Errorf("%w: a chain's flag is %d", ErrState, b[24])
		}
		restored.put(binary.LittleEndian.Uint64(b), chain{
			lora: binary.LittleEndian.Uint64(b[8:]),
			salt: binary.LittleEndian.Uint64(b[16:]),
			left: b[24] == 1,
		})
	}
	d.chains, d.groups = restored, groups
	return nil
}

// restoreGroups reads the cache groups of a state of the version, and returns what follows.
func restoreGroups(b []byte, version byte) (c cacheGroups, rest []byte, err error) {
	for i, g := range b[:maxGroups] {
		if c.kinds[i] = groupKind(g); c.kinds[i] > groupNone {
			return c, nil, fmt.Errorf("%w: cache group of kind %d", ErrState, g)
		}
	}
	b = b[maxGroups:]
	if version == 1 {
		c.main = int64(slices.Index(c.kinds[:], groupMain)) + 1
		return c, b, nil
	}
	if len(b) < 5 || b[0] > maxGroups || uint64(binary.LittleEndian.Uint32(b[1:])) > uint64(len(b)-5) {
		return c, nil, fmt.Errorf("%w: in its cache groups", ErrState)
	}
	c.main = int64(b[0])
	n := binary.LittleEndian.Uint32(b[1:])
	if err = json.Unmarshal(b[5:5+n], &c.list); err == nil {
		err = event.CheckCacheGroups(c.list)
	}
	if err != nil {
		return c, nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	c.hybrid = slices.ContainsFunc(c.list, func(g event.CacheGroup) bool { return g.Number > 0 })
	return c, b[5+n:], nil
}
