package keeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/snapshot"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// This file says which snapshots there are of a stream, whether a file is the one
// that it is taken for, and whether the stream goes on from it: files are copied,
// swapped and put back, and so are streams.

// Why a snapshot that is whole is not used.
var (
	errEntry = errors.New("the file is not the snapshot that was written under this name")
	errOther = errors.New("the snapshot is of another stream")
	errVoid  = errors.New("the stream does not go on from the snapshot")
	errOld   = errors.New("who left since the snapshot may be forgotten by now, and the stream does not reach back to it")
)

// EntryOf returns the manifest's entry of a snapshot, from what it says of itself.
func EntryOf(info *snapshot.Info) store.Entry {
	m := &info.Meta
	return store.Entry{
		Name: store.Name(m.Seq, m.Fence), Seq: m.Seq, Created: m.Created, Stored: m.Stored, Written: m.Written, Writer: m.Writer, Fence: m.Fence,
		Bytes: info.Bytes, Blocks: info.Footer.Blocks, Digest: info.Footer.Digest,
	}
}

// check refuses a snapshot that is not the one that was found, or not of the
// stream. It leaves open whether the stream goes on from it.
func check(f *store.Found, info *snapshot.Info, name string, sp event.Space) error {
	m := &info.Meta
	if m.Stream != name || event.Space(m.Space) != sp {
		return fmt.Errorf("%w: %s, of model %q, block size %d, group %q", errOther, m.Stream, m.Space.Model, m.Space.BlockSize, m.Space.Group)
	}
	e := EntryOf(info)
	if e.Name != f.Name {
		return fmt.Errorf("%w: it is %s", errEntry, e.Name)
	}
	if !f.Listed {
		return nil
	}
	want := f.Entry
	e.TookMs = want.TookMs // which nobody knew while the file was written
	same := e.Created.Equal(want.Created) && e.Written.Equal(want.Written) &&
		(e.Stored.Equal(want.Stored) || want.Stored.IsZero()) // earlier manifests do not have it
	for _, t := range []*time.Time{&e.Created, &e.Written, &e.Stored, &want.Created, &want.Written, &want.Stored} {
		*t = time.Time{} // equal times may differ in their form
	}
	if !same || e != want {
		return fmt.Errorf("%w: it has digest %016x and %d bytes, the manifest says %016x and %d", errEntry, e.Digest, e.Bytes, want.Digest, want.Bytes)
	}
	return nil
}

// recent refuses a snapshot from which workers might come back that left so long
// ago that nobody knows it.
func (k *Keeper) recent(info *stream.Info, m *snapshot.Meta) error {
	if age := time.Since(m.Written); k.cfg.Forget > 0 && age > k.cfg.Forget && info.FirstSeq > m.Seq+1 {
		return fmt.Errorf("%w: it is %v old", errOld, age.Round(time.Second))
	}
	return nil
}

// streamContinues refuses a snapshot that the stream does not go on from.
func (k *Keeper) streamContinues(ctx context.Context, name string, e store.Entry) error {
	s, info, err := stream.Open(ctx, k.js, name)
	if err != nil {
		return err
	}
	why, err := stream.Void(ctx, s, &info, stream.Position{Seq: e.Seq, Created: e.Created, Stored: e.Stored})
	if err == nil && why != "" {
		err = fmt.Errorf("%w: %s", errVoid, why)
	}
	return err
}

// find lists the stream's snapshots, best first, and tells of a manifest that
// does not.
func (k *Keeper) find(ctx context.Context, s store.Store, name string) ([]store.Found, error) {
	l, err := store.List(ctx, s)
	if err != nil {
		return nil, err
	}
	if l.Fault != nil {
		k.m.fault(faultOf(l.Fault))
		k.cfg.Log.Warn("snapshots are looked for without their manifest; the next one that is taken lists them again",
			"stream", name, "in", s.String(), "found", len(l.Snapshots), "error", l.Fault)
	}
	return l.Snapshots, nil
}

// refused notes that a snapshot is not used.
func (k *Keeper) refused(s store.Store, name string, f *store.Found, err error) {
	k.m.restores("refused")
	k.m.refused(reason(err))
	k.cfg.Log.Warn("a snapshot is not used", "stream", name, "in", s.String(), "name", f.Name, "listed", f.Listed, "error", err)
}

// Readmit returns what a claim of the stream's manifest asks about a snapshot that
// the manifest does not know: it comes in again if it is whole and is what its
// name says. No more do than are kept.
func (k *Keeper) Readmit(s store.Store, name string, sp event.Space) func(ctx context.Context, snap string) (store.Entry, bool) {
	readmitted := 0
	return func(ctx context.Context, snap string) (store.Entry, bool) {
		if readmitted == k.cfg.Keep {
			return store.Entry{}, false
		}
		info, err := k.verify(ctx, s, snap)
		if err == nil {
			err = check(&store.Found{Entry: store.Entry{Name: snap}}, info, name, sp)
		}
		if err != nil {
			k.cfg.Log.Warn("a snapshot that is not in the manifest does not come in", "stream", name, "in", s.String(), "name", snap, "error", err)
			return store.Entry{}, false
		}
		readmitted++
		k.m.adopted.Inc()
		k.cfg.Log.Warn("a snapshot comes into the manifest again", "stream", name, "in", s.String(), "name", snap)
		return EntryOf(info), true
	}
}
