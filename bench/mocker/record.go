package mocker

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/kvatlas/kvatlas/event"
)

// maxRecord bounds the length that a record may claim, in bytes. An event has
// at most the blocks of one step.
const maxRecord = 256 << 20

// recorder writes events to a file: for each one a little-endian u32 length
// and a native batch with this one event.
type recorder struct {
	file *os.File
	w    *bufio.Writer
	buf  []byte
	one  event.Batch // reused
}

func newRecorder(path string, sp event.Space) (*recorder, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("record the events: %w", err)
	}
	return &recorder{file: f, w: bufio.NewWriterSize(f, 256<<10), one: event.Batch{Space: sp, Events: make([]event.Event, 1)}}, nil
}

func (r *recorder) add(worker, id uint64, ev *event.Event) error {
	r.one.Worker = worker
	r.one.Events[0] = *ev
	r.one.Events[0].ID = id
	r.buf = event.AppendBatch(r.buf[:0], &r.one)
	var head [4]byte
	binary.LittleEndian.PutUint32(head[:], uint32(len(r.buf)))
	if _, err := r.w.Write(head[:]); err != nil {
		return fmt.Errorf("record an event: %w", err)
	}
	if _, err := r.w.Write(r.buf); err != nil {
		return fmt.Errorf("record an event: %w", err)
	}
	return nil
}

func (r *recorder) flush() error {
	if err := r.w.Flush(); err != nil {
		return fmt.Errorf("record the events: %w", err)
	}
	return nil
}

func (r *recorder) close() error {
	return errors.Join(r.flush(), r.file.Close())
}

// ReadRecord calls f for each event recorded in a file of --events-out, as a
// batch of one that lives until f returns.
func ReadRecord(path string, f func(*event.Batch) error) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read recorded events: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	in := bufio.NewReaderSize(file, 256<<10)
	var dec event.Decoder
	var buf []byte
	for n := 0; ; n++ {
		var head [4]byte
		if _, err := io.ReadFull(in, head[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read recorded event %d: %w", n, err)
		}
		size := binary.LittleEndian.Uint32(head[:])
		if size > maxRecord {
			return fmt.Errorf("read recorded event %d: a length of %d bytes", n, size)
		}
		if uint32(cap(buf)) < size {
			buf = make([]byte, size)
		}
		buf = buf[:size]
		if _, err := io.ReadFull(in, buf); err != nil {
			return fmt.Errorf("read recorded event %d: %w", n, err)
		}
		b, err := dec.Decode(buf)
		if err != nil {
			return fmt.Errorf("read recorded event %d: %w", n, err)
		}
		if err := f(b); err != nil {
			return err
		}
	}
}
