package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A decoder's state, version 1: "KVE", the version, a kind for each of
// maxGroups cache groups, the number of chains (u32) and the chains: engine
// hash, what LoRA and salt add to the seed (u64 each), left out or not (u8).
// Numbers are little-endian.
const (
	stateMagic   = "KVE"
	stateVersion = 1
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
	for _, g := range d.groups {
		dst = append(dst, byte(g))
	}
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
	if string(b[:3]) != stateMagic || b[3] != stateVersion {
		return fmt.Errorf("%w: it begins with %q, want %q and version %d", ErrState, b[:4], stateMagic, stateVersion)
	}
	var groups [maxGroups]groupKind
	for i, g := range b[4 : 4+maxGroups] {
		if groups[i] = groupKind(g); groups[i] > groupOther {
			return fmt.Errorf("%w: cache group of kind %d", ErrState, g)
		}
	}
	n := int64(binary.LittleEndian.Uint32(b[4+maxGroups:]))
	b = b[stateHeader:]
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
