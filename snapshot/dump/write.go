package dump

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// lineBlocks is about how many blocks a line has at most.
const lineBlocks = 4096

// Writer writes a dump: Header, then for each rank its Events and Rank, then
// End.
type Writer struct {
	out   io.Writer
	space event.Space
	count counter
	text  []byte
}

// NewWriter returns a Writer for a dump of the space.
func NewWriter(out io.Writer, sp event.Space) *Writer {
	return &Writer{out: out, space: sp, count: newCounter(sp)}
}

// Header writes the first line, with the Writer's version and space, which it puts into h.
func (w *Writer) Header(h *Header) error {
	h.Version, h.Model, h.Group, h.BlockSize = Version, w.space.Model, w.space.Group, w.space.BlockSize
	return w.object(&line{Dump: h})
}

// Event writes one event of the rank, in lines of bounded length.
func (w *Writer) Event(id shard.RankID, d *shard.Dumped) error {
	ev, copies := d.Event, d.Copies
	ev.DPRank = id.DPRank
	if ev.Group > 0 {
		return w.grouped(id, &ev, copies)
	}
	for len(ev.Engine) > 0 {
		n := min(len(ev.Engine), lineBlocks)
		for n < len(ev.Engine) && ev.Engine[n] == ev.Engine[n-1] {
			n++ // a position without a hash is told together with the next one
		}
		part := ev
		part.Engine = ev.Engine[:n]
		if len(ev.Local) > 0 {
			part.Local = ev.Local[:n]
		}
		if err := w.count.add(id.Worker, &part, copies[:n]); err != nil {
			return err
		}
		w.text = appendStored(w.text[:0], id.Worker, &part, copies[:n])
		if _, err := w.out.Write(w.text); err != nil {
			return err
		}
		if len(ev.Local) > 0 {
			ev.HasParent, ev.Parent, ev.Local = true, ev.Engine[n-1], ev.Local[n:]
		}
		ev.Engine, copies = ev.Engine[n:], copies[n:]
	}
	return nil
}

// Rank ends a rank. at is where its events were read to; nil if not known.
func (w *Writer) Rank(id shard.RankID, at *Publisher) (Sum, error) {
	sum, groups := w.count.end()
	return sum, w.object(&line{Rank: &RankEnd{Worker: id.Worker, DPRank: id.DPRank, Sum: sum, Groups: groups, Position: at, Cursor: Cursor(id)}})
}

// grouped writes an event of a cache group besides full attention.
func (w *Writer) grouped(id shard.RankID, ev *event.Event, copies []uint32) error {
	if err := w.count.add(id.Worker, ev, copies); err != nil {
		return err
	}
	g := &grouped{
		Worker: id.Worker, DPRank: id.DPRank, Group: ev.Group, Tier: ev.Tier.String(), Engine: ev.Engine, Incomplete: ev.Incomplete,
	}
	if slices.ContainsFunc(copies, func(n uint32) bool { return n != 1 }) {
		g.Copies = copies
	}
	return w.object(&line{Grouped: g})
}

// End writes the last line.
func (w *Writer) End() error { return w.object(&line{End: &w.count.all}) }

func (w *Writer) object(l *line) error {
	text, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	_, err = w.out.Write(append(text, '\n'))
	return err
}

func appendStored(dst []byte, worker uint64, ev *event.Event, copies []uint32) []byte {
	dst = append(dst, `{"stored":{"worker_id":"`...)
	dst = strconv.AppendUint(dst, worker, 10)
	dst = append(dst, `","dp_rank":`...)
	dst = strconv.AppendUint(dst, uint64(ev.DPRank), 10)
	dst = append(dst, `,"tier":"`...)
	dst = append(dst, ev.Tier.String()...)
	dst = append(dst, '"')
	if ev.HasParent {
		dst = append(dst, `,"parent":`...)
		dst = strconv.AppendUint(dst, ev.Parent, 10)
	}
	dst = appendNumbers(dst, "engine", ev.Engine)
	if len(ev.Local) > 0 {
		dst = appendNumbers(dst, "local", ev.Local)
	}
	for _, n := range copies {
		if n != 1 {
			dst = appendNumbers(dst, "copies", copies)
			break
		}
	}
	return append(dst, "}}\n"...)
}

func appendNumbers[T uint32 | uint64](dst []byte, name string, list []T) []byte {
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	for i, v := range list {
		sep := byte(',')
		if i == 0 {
			sep = '['
		}
		dst = strconv.AppendUint(append(dst, sep), uint64(v), 10)
	}
	return append(dst, ']')
}
