package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/internal/race"
)

const (
	magic      = "KVATSNAP"
	headerSize = 16

	chunkHeader = 20
	sumSize     = 8
)

// The kinds of chunk.
const (
	kindMeta     = 1
	kindRuns     = 2
	kindInferred = 3
	kindGroups   = 4
	kindFooter   = 255
)

const (
	flagFirst  = 1 // part one is compressed
	flagSecond = 2
)

// chunk is one chunk with its parts as they were given.
type chunk struct {
	kind    byte
	section int
	meta    []byte
	words   []byte

	room [2][]byte // what parts were unpacked to, used again by the next chunk
}

func (c *chunk) size() int { return len(c.meta) + len(c.words) }

// header returns the bytes that a file begins with.
func header() []byte {
	h := make([]byte, headerSize)
	copy(h, magic)
	binary.LittleEndian.PutUint16(h[8:], Version)
	return h
}

// packer compresses chunks. One goroutine uses it at a time.
type packer struct {
	enc *zstd.Encoder
	out []byte
}

func newPacker() (*packer, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<20))
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return &packer{enc: enc}, nil
}

// pack returns the chunk's bytes, without the checksum but with room for it.
// They live until the next call.
func (p *packer) pack(c *chunk) []byte {
	b := append(p.out[:0], make([]byte, chunkHeader)...)
	b[0] = c.kind
	binary.LittleEndian.PutUint16(b[2:], uint16(c.section))
	for i, part := range [][]byte{c.meta, c.words} {
		start := len(b)
		if squeezable(p.enc, part) {
			b = p.enc.EncodeAll(part, b)
			b[1] |= flagFirst << i
			race.Read(part) // compressing is assembly, and owners have written the part
		}
		if stored := len(b) - start; stored == 0 || stored >= len(part) {
			b = append(b[:start], part...)
			b[1] &^= flagFirst << i
		}
		binary.LittleEndian.PutUint32(b[4+8*i:], uint32(len(b)-start))
		binary.LittleEndian.PutUint32(b[8+8*i:], uint32(len(part)))
	}
	p.out = b
	return b
}

// sample is how much of a part is tried before all of it is compressed: hashes
// do not get smaller, and trying takes longer than writing them.
const sample = 4 << 10

func squeezable(enc *zstd.Encoder, part []byte) bool {
	if len(part) < 4*sample {
		return len(part) > 0
	}
	at := (len(part) - sample) / 2 &^ 7
	return len(enc.EncodeAll(part[at:at+sample], nil)) < sample*15/16
}

// chunkWriter writes chunks to a file. One goroutine uses it at a time.
type chunkWriter struct {
	w      io.Writer
	sum    uint64 // of the chunk before
	chunks uint64
	raw    uint64
	bytes  uint64
}

func newChunkWriter(w io.Writer) (*chunkWriter, error) {
	h := header()
	if _, err := w.Write(h); err != nil {
		return nil, fmt.Errorf("writing a snapshot: %w", err)
	}
	return &chunkWriter{w: w, sum: xxh3.Hash(h), bytes: headerSize}, nil
}

// write appends the checksum to a packed chunk and writes it.
func (w *chunkWriter) write(packed []byte, raw int) error {
	w.sum = xxh3.HashSeed(packed, w.sum)
	packed = binary.LittleEndian.AppendUint64(packed, w.sum)
	w.chunks++
	w.raw += uint64(raw)
	w.bytes += uint64(len(packed))
	if _, err := w.w.Write(packed); err != nil {
		return fmt.Errorf("writing a snapshot: %w", err)
	}
	return nil
}

// chunkReader reads the chunks of a file and checks them.
type chunkReader struct {
	r    io.Reader
	sum  uint64
	read uint64
	dec  *zstd.Decoder
	head [chunkHeader]byte
	buf  []byte
}

func newChunkReader(r io.Reader) (*chunkReader, error) {
	h := make([]byte, headerSize)
	if _, err := io.ReadFull(r, h); err != nil {
		return nil, short(err, "its header")
	}
	if !bytes.Equal(h[:8], []byte(magic)) {
		return nil, fmt.Errorf("%w: it does not begin as a snapshot does", ErrDamaged)
	}
	v := binary.LittleEndian.Uint16(h[8:])
	switch {
	case v > Version:
		return nil, fmt.Errorf("%w: version %d, and %d is the newest that it reads: use the release that wrote it, or a newer one", ErrVersion, v, Version)
	case v < oldestVersion:
		return nil, fmt.Errorf("%w: version %d, and %d is the oldest that it reads", ErrVersion, v, oldestVersion)
	case !bytes.Equal(h[10:], make([]byte, headerSize-10)):
		return nil, fmt.Errorf("%w: its header", ErrDamaged)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxPart), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return &chunkReader{r: r, sum: xxh3.Hash(h), read: headerSize, dec: dec}, nil
}

func short(err error, what string) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends within %s", ErrDamaged, what)
	}
	return fmt.Errorf("reading a snapshot: %w", err)
}

// stored is a chunk as it stands in the file.
type stored struct {
	kind, flags byte
	section     int
	part        [2][]byte
	raw         [2]int
}

// size is how much memory the chunk takes, as it stands and unpacked.
func (s *stored) size() int64 {
	n := len(s.part[0]) + len(s.part[1])
	for i, raw := range s.raw {
		if s.packed(i) {
			n += raw
		}
	}
	return int64(n)
}

// packed reports whether part i is compressed.
func (s *stored) packed(i int) bool { return s.flags&(flagFirst<<i) != 0 }

// next returns the next chunk, checked and not unpacked; it lives until the
// next call. Its second part is aligned, so that words can be read where they stand.
func (r *chunkReader) next() (stored, error) {
	var s stored
	b := r.head[:]
	if _, err := io.ReadFull(r.r, b); err != nil {
		return s, short(err, fmt.Sprintf("the chunk at byte %d", r.read))
	}
	s.kind, s.flags, s.section = b[0], b[1], int(binary.LittleEndian.Uint16(b[2:]))
	n := 0
	var length [2]int
	for i := range length {
		packed, raw := binary.LittleEndian.Uint32(b[4+8*i:]), binary.LittleEndian.Uint32(b[8+8*i:])
		if raw > maxPart || packed > raw || packed < raw && !s.packed(i) {
			return s, fmt.Errorf("%w: the chunk at byte %d says that it has %d bytes, %d unpacked", ErrDamaged, r.read, packed, raw)
		}
		length[i], s.raw[i] = int(packed), int(raw)
		n += length[i]
	}
	pad := -(chunkHeader + length[0]) & 7
	// The buffer grows with what is there, not with what is declared.
	rest, err := readBounded(r.r, append(append(r.buf[:0], make([]byte, pad)...), b...), n+sumSize)
	if r.buf = rest; err != nil {
		return s, short(err, fmt.Sprintf("the chunk at byte %d", r.read))
	}
	body, sums := rest[pad:pad+chunkHeader+n], rest[pad+chunkHeader+n:]
	sum := xxh3.HashSeed(body, r.sum)
	if sum != binary.LittleEndian.Uint64(sums) {
		return s, fmt.Errorf("%w: the checksum of the chunk at byte %d is wrong", ErrDamaged, r.read)
	}
	r.sum = sum
	r.read += uint64(len(rest) - pad)
	s.part[0], s.part[1] = body[chunkHeader:chunkHeader+length[0]], body[chunkHeader+length[0]:]
	return s, nil
}

// readBounded appends n bytes of r to dst, in steps.
func readBounded(r io.Reader, dst []byte, n int) ([]byte, error) {
	const step = 4 << 20
	for n > 0 {
		k := min(n, step)
		if cap(dst)-len(dst) < k {
			dst = append(make([]byte, 0, max(len(dst)+k, min(2*cap(dst), len(dst)+n))), dst...)
		}
		at := len(dst)
		dst = dst[:at+k]
		if _, err := io.ReadFull(r, dst[at:]); err != nil {
			return dst[:at], err
		}
		n -= k
	}
	return dst, nil
}

// unpack makes c the chunk, with its parts in c's memory, or where they stand in s if they
// are not compressed.
func (r *chunkReader) unpack(s *stored, c *chunk) error {
	c.kind, c.section = s.kind, s.section
	for i, to := range []*[]byte{&c.meta, &c.words} {
		if !s.packed(i) {
			*to = s.part[i]
			continue
		}
		out, err := r.dec.DecodeAll(s.part[i], c.room[i][:0])
		race.Read(s.part[i]) // assembly, too, and the next chunk is read meanwhile
		if err != nil || len(out) != s.raw[i] {
			return fmt.Errorf("%w: a chunk cannot be unpacked to %d bytes: %w", ErrDamaged, s.raw[i], err)
		}
		*to, c.room[i] = out, out
	}
	return nil
}

// end checks that nothing follows.
func (r *chunkReader) end() error {
	var b [1]byte
	if _, err := io.ReadFull(r.r, b[:]); !errors.Is(err, io.EOF) {
		if err != nil {
			return fmt.Errorf("reading a snapshot: %w", err)
		}
		return fmt.Errorf("%w: something follows its end", ErrDamaged)
	}
	return nil
}
