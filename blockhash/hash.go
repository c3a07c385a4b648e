package blockhash

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/internal/race"
)

// MaxBlockSize is the largest number of tokens in a block; the smallest is 1.
const MaxBlockSize = 1024

// hashSeed seeds the local hashes of prompts with neither LoRA nor salt, and
// every sequence hash. Dynamo 1.6.1 uses the same value.
const hashSeed = 1337

// ErrBlockSize is wrapped by the errors about a block size out of range.
var ErrBlockSize = errors.New("block size out of range")

// CheckBlockSize returns an error that wraps ErrBlockSize unless the block
// size is 1 … MaxBlockSize tokens.
func CheckBlockSize(blockSize int) error {
	if blockSize < 1 || blockSize > MaxBlockSize {
		return fmt.Errorf("%w: %d tokens, give 1 to %d", ErrBlockSize, blockSize, MaxBlockSize)
	}
	return nil
}

// Options says what goes into a local hash besides the block's tokens. The
// zero value is a plain text prompt.
type Options struct {
	// Seed is what [Seed] returns for the prompt's LoRA and salt; 0 means the
	// seed of neither.
	Seed uint64
	// Eagle makes each hash cover one token more than its block (windows of
	// B+1 tokens, B apart), as speculative decoding with Eagle keeps them.
	Eagle bool
	// MM holds for each block the hashes of the multimodal objects that touch
	// it, in any order; blocks beyond len(MM) have none.
	MM [][]uint64
}

// Seed returns the seed of the local hashes of prompts with the LoRA name and
// the cache salt (or namespace). Empty means absent.
func Seed(lora, salt string) uint64 {
	seed := uint64(hashSeed)
	if lora != "" {
		seed += xxh3.HashString(lora)
	}
	if salt != "" {
		seed += xxh3.HashStringSeed(salt, 1)
	}
	return seed
}

// Blocks returns how many complete blocks of blockSize tokens a prompt of n
// tokens has. It is 0 for a block size below 1.
func Blocks(n, blockSize int, eagle bool) int {
	if n <= 0 || blockSize < 1 {
		return 0
	}
	if eagle {
		n-- // the last block needs one token beyond its own
	}
	return n / blockSize
}

// LocalHashes appends the local hash of every complete block of tokens to dst
// and returns it. It allocates nothing if dst has the room and no block has
// multimodal objects. The error wraps ErrBlockSize.
func LocalHashes(dst []uint64, tokens []uint32, blockSize int, o Options) ([]uint64, error) {
	if err := CheckBlockSize(blockSize); err != nil {
		return dst, err
	}
	window := blockSize
	if o.Eagle {
		window++
	}
	n := Blocks(len(tokens), blockSize, o.Eagle)
	dst = slices.Grow(dst, n)
	for i := range n {
		var mm []uint64
		if i < len(o.MM) {
			mm = o.MM[i]
		}
		dst = append(dst, LocalHash(tokens[i*blockSize:i*blockSize+window], o.Seed, mm))
	}
	return dst, nil
}

// LocalHash returns the local hash of one block: XXH3-64 of its tokens as
// little-endian u32, then of its multimodal hashes as little-endian u64 in
// rising order. A seed of 0 means that of neither LoRA nor salt.
func LocalHash(block []uint32, seed uint64, mm []uint64) uint64 {
	if seed == 0 {
		seed = hashSeed
	}
	if len(mm) == 0 {
		return hashTokens(block, seed)
	}
	return hashTokensMM(block, seed, mm)
}

// SequenceHashes appends to dst the sequence hash of every block, given the
// local hashes of a prompt from its first block on.
func SequenceHashes(dst, local []uint64) []uint64 {
	dst = slices.Grow(dst, len(local))
	for i, l := range local {
		if i > 0 {
			l = NextSequenceHash(dst[len(dst)-1], l)
		}
		dst = append(dst, l)
	}
	return dst
}

// NextSequenceHash returns the sequence hash of the block with the local hash
// whose parent has the sequence hash parent. A first block's sequence hash is
// its local hash.
func NextSequenceHash(parent, local uint64) uint64 {
	return hashPair(parent, local, hashSeed)
}

// MultimodalHash returns the hash by which a multimodal object's identifier
// enters a block: the first 16 of exactly 64 hexadecimal digits as a number,
// else the XXH3-64 of the bytes.
func MultimodalHash(id []byte) uint64 {
	if len(id) == 64 {
		var b [32]byte
		if _, err := hex.Decode(b[:], id); err == nil {
			var h uint64
			for _, x := range b[:8] {
				h = h<<8 | uint64(x)
			}
			return h
		}
	}
	h := xxh3.Hash(id)
	race.Read(id) // the hash of much is assembly
	return h
}
