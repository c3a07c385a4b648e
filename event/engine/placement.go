package engine

import (
	"fmt"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/wire/msgpack"
)

// Placement decodes a page of what SGLang's snapshots have (sglang#34407): an array of
// [parent, [hash, …]]. There are no tokens in it, so that the blocks are given by their
// hashes alone: where one lies is known only if its hash is, from another worker.
func (d *Decoder) Placement(payload []byte) (*event.Batch, error) {
	d.batch = event.Batch{}
	d.hashes = d.hashes[:0]
	r := msgpack.NewReader(payload)
	for i, n := 0, r.Array(); i < n && r.Err() == nil; i++ {
		fields := r.Array()
		if r.Err() == nil && fields < 2 {
			r.Fail(fmt.Errorf("%w: a block of %d fields, want 2 at least", event.ErrMalformed, fields))
		}
		for f := 0; f < fields && r.Err() == nil; f++ {
			if f == 1 {
				d.hashes = r.AppendHashes(d.hashes)
			} else {
				r.Skip()
			}
		}
	}
	if r.Err() == nil && r.Len() > 0 {
		r.Fail(fmt.Errorf("%w: %d bytes after the page", event.ErrMalformed, r.Len()))
	}
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("a snapshot's page of %d bytes: %w", len(payload), err)
	}
	d.events = d.events[:0]
	if len(d.hashes) > 0 {
		d.events = append(d.events, event.Event{Kind: event.Stored, DPRank: d.cfg.Rank, Engine: d.hashes})
	}
	d.batch.Events = d.events
	return &d.batch, nil
}

// SnapshotHeader reads what SGLang's snapshots begin with: an array of version, epoch (which
// names the process), rank, the number of the batch to go on with, two fields more, and how
// many blocks follow.
func SnapshotHeader(b []byte) (epoch []byte, next, blocks uint64, err error) {
	r := msgpack.NewReader(b)
	if n := r.Array(); r.Err() == nil && n < 7 {
		r.Fail(fmt.Errorf("%w: %d fields, want 7", event.ErrMalformed, n))
	}
	version := r.Uint64()
	epoch = r.Str()
	r.Skip() // its endpoint says which rank it is of
	next = r.Uint64()
	r.Skip() // of the batch before, which is empty, the number and a name
	r.Skip()
	blocks = r.Uint64()
	if r.Err() == nil && (version != 1 || len(epoch) == 0) {
		r.Fail(fmt.Errorf("%w: version %d, process %.50q", event.ErrMalformed, version, epoch))
	}
	if r.Err() != nil {
		return nil, 0, 0, fmt.Errorf("a snapshot's header of %d bytes: %w", len(b), r.Err())
	}
	return epoch, next, blocks, nil
}
