package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Settings of a Reader.
const (
	DefaultMaxLine = 16 << 20  // bytes; the longest line of the public traces has 120 kB
	maxWindow      = 128 << 20 // bytes a zstd frame may ask for to decode
)

// Reader streams the requests of a trace. It belongs to one goroutine.
type Reader struct {
	name     string
	lines    *bufio.Reader
	zstd     *zstd.Decoder // nil if plain
	file     io.Closer     // nil if the caller owns the input
	idTokens int
	maxLine  int

	line    int           // of the last line read, from 1
	serial  uint64        // of the next request
	last    time.Duration // arrival of the last request
	partial []byte        // a line longer than the buffer, put together
}

var _ Source = (*Reader)(nil)

// Open opens a trace file whose ids stand for idTokens tokens each; 0 finds
// that out from its first requests. The caller closes the Reader.
func Open(path string, idTokens int) (*Reader, error) {
	if idTokens == 0 {
		var err error
		if idTokens, err = DetectIDTokens(path); err != nil {
			return nil, err
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the trace: %w", err)
	}
	r, err := NewReader(path, f, idTokens)
	if err != nil {
		_ = f.Close() // the first error says more
		return nil, err
	}
	r.file = f
	return r, nil
}

// NewReader reads a trace from in; name is what errors call it.
func NewReader(name string, in io.Reader, idTokens int) (*Reader, error) {
	if idTokens < 1 || idTokens > maxTokens {
		return nil, fmt.Errorf("trace %s: tokens of an id must be 1 … %d, not %d", name, maxTokens, idTokens)
	}
	r := &Reader{name: name, idTokens: idTokens, maxLine: DefaultMaxLine}
	buf := bufio.NewReaderSize(in, 256<<10)
	magic, err := buf.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("trace %s: %w", name, err)
	}
	r.lines = buf
	// The magic number of a zstd frame, RFC 8878, section 3.1.1.
	if bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		r.zstd, err = zstd.NewReader(buf, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, fmt.Errorf("trace %s: %w", name, err)
		}
		r.lines = bufio.NewReaderSize(r.zstd, 256<<10)
	}
	return r, nil
}

// IDTokens implements Source.
func (r *Reader) IDTokens() int { return r.idTokens }

// Next implements Source. Errors other than io.EOF name the trace and the line
// and are final.
func (r *Reader) Next(q *Request) error {
	for {
		line, err := r.readLine()
		if errors.Is(err, io.EOF) {
			return io.EOF
		}
		if err != nil {
			return r.wrap(err)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := parseLine(line, q); err != nil {
			return r.wrap(err)
		}
		if err := r.check(q); err != nil {
			return r.wrap(err)
		}
		r.last = q.Arrival
		q.Serial = r.serial
		r.serial++
		return nil
	}
}

func (r *Reader) wrap(err error) error {
	return fmt.Errorf("trace %s, line %d: %w", r.name, r.line, err)
}

// check refuses what cannot be of a trace of this many tokens an id. Traces
// differ in whether a partial last block has an id, so both are accepted.
func (r *Reader) check(q *Request) error {
	n, t := len(q.IDs), r.idTokens
	if n < q.Input/t || n > (q.Input+t-1)/t {
		return fmt.Errorf("%d ids of %d tokens do not fit an input_length of %d: is the number of tokens of an id right?", n, t, q.Input)
	}
	if q.Arrival < r.last {
		return fmt.Errorf("the timestamp goes back from %v to %v: sort the trace by time", r.last, q.Arrival)
	}
	return nil
}

// readLine returns the next line, which lives until the next call.
func (r *Reader) readLine() ([]byte, error) {
	r.line++
	line, err := r.lines.ReadSlice('\n')
	if err == nil {
		return line, nil
	}
	r.partial = append(r.partial[:0], line...)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(r.partial) > r.maxLine {
			return nil, fmt.Errorf("longer than %d bytes", r.maxLine)
		}
		line, err = r.lines.ReadSlice('\n')
		r.partial = append(r.partial, line...)
	}
	if len(r.partial) > r.maxLine {
		return nil, fmt.Errorf("longer than %d bytes", r.maxLine)
	}
	if err != nil && (!errors.Is(err, io.EOF) || len(r.partial) == 0) {
		return nil, err
	}
	return r.partial, nil
}

// Close releases what Open and NewReader took.
func (r *Reader) Close() error {
	if r.zstd != nil {
		r.zstd.Close()
	}
	if r.file != nil {
		return r.file.Close()
	}
	return nil
}

// detectLines is how many requests DetectIDTokens looks at.
const detectLines = 1000

// DetectIDTokens finds how many tokens an id of the trace stands for: the one
// power of two that fits the lengths of its first requests.
func DetectIDTokens(path string) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("open the trace: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	r, err := NewReader(path, f, 1)
	if err != nil {
		return 0, err
	}
	defer r.Close() //nolint:errcheck // closes only the decoder
	low, high := 1, maxTokens
	var q Request
	for range detectLines {
		line, err := r.readLine()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, r.wrap(err)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := parseLine(line, &q); err != nil {
			return 0, r.wrap(err)
		}
		// n ids of t tokens: (n-1) t < input < (n+1) t.
		n := len(q.IDs)
		low = max(low, q.Input/(n+1)+1)
		if n > 1 {
			high = min(high, (q.Input-1)/(n-1))
		}
		t := 1 << bits.Len(uint(low-1)) // the first power of two from low on
		if t <= high && 2*t > high {
			return t, nil
		}
	}
	return 0, fmt.Errorf("trace %s: cannot tell how many tokens an id stands for (%d … %d fit): say it", path, low, high)
}
