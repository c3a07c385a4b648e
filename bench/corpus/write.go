package corpus

import (
	"encoding/binary"

	"github.com/kvatlas/kvatlas/event"
)

// kinds are the numbers of the kinds of event in an operation.
var kinds = [...]uint8{event.Stored: kindStored, event.Removed: kindRemoved, event.Cleared: kindCleared}

// Encode gives a corpus in the form that Read reads, with the totals that it
// counts itself. Its requests come before its events, and its informational
// fields are zero.
func Encode(c *Corpus) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32([]byte(magic), version)
	b = le.AppendUint32(b, c.BlockSize)
	for _, v := range []uint64{0, 0, 0, 0, c.Workers} {
		b = le.AppendUint64(b, v)
	}
	t := c.count()
	for _, v := range []uint64{t.Requests, t.Stores, t.Removals, t.Clears, t.RequestBlocks, t.StoredBlocks, t.RemovedBlocks} {
		b = le.AppendUint64(b, v)
	}
	b = le.AppendUint64(b, uint64(len(c.Trace)))
	b = append(b, c.Trace...)

	var requests, stored, removed, ops []byte
	head := func(worker uint64, kind uint8) {
		ops = le.AppendUint32(ops, 0)
		ops = le.AppendUint64(ops, 0)
		ops = le.AppendUint64(ops, worker)
		ops = append(ops, kind)
	}
	for _, q := range c.Requests {
		head(0, kindQuery)
		ops = le.AppendUint64(ops, uint64(len(requests)/8))
		ops = le.AppendUint32(ops, uint32(len(q)))
		for _, h := range q {
			requests = le.AppendUint64(requests, h)
		}
	}
	for _, e := range c.Events {
		head(e.Worker, kinds[e.Kind])
		ops = le.AppendUint32(ops, e.DPRank)
		ops = le.AppendUint64(ops, e.ID)
		switch e.Kind {
		case event.Stored:
			if e.HasParent {
				ops = append(ops, 1)
			} else {
				ops = append(ops, 0)
			}
			ops = le.AppendUint64(ops, e.Parent)
			ops = append(ops, 0, 0, 0, 0, 0)
			ops = le.AppendUint64(ops, uint64(len(stored)/16))
			for i, h := range e.Engine {
				stored = le.AppendUint64(le.AppendUint64(stored, h), e.Local[i])
			}
			ops = le.AppendUint32(ops, uint32(len(e.Engine)))
		case event.Removed:
			ops = le.AppendUint64(ops, uint64(len(removed)/8))
			for _, h := range e.Engine {
				removed = le.AppendUint64(removed, h)
			}
			ops = le.AppendUint32(ops, uint32(len(e.Engine)))
		}
	}
	for _, table := range []struct {
		data []byte
		item int
	}{{requests, 8}, {stored, 16}, {removed, 8}} {
		b = le.AppendUint64(b, uint64(len(table.data)/table.item))
		b = append(b, table.data...)
	}
	b = le.AppendUint64(b, uint64(len(c.Requests)+len(c.Events)))
	return append(b, ops...)
}
