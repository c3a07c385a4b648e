package store

import (
	"cmp"
	"context"
	"errors"
	"slices"
)

// The faults of a manifest that can be read.
var (
	// ErrNoManifest is of snapshots without a manifest.
	ErrNoManifest = errors.New("there is no manifest")
	// ErrOldManifest is of a manifest that was replaced by an older one.
	ErrOldManifest = errors.New("the manifest is older than its snapshots")
)

// Listing is the snapshots to start from, best first.
type Listing struct {
	Snapshots []Found
	// Fault says why the manifest does not have all that count; nil: it has. It
	// wraps ErrManifest, ErrNoManifest or ErrOldManifest.
	Fault error
}

// Found is a snapshot that may be there.
type Found struct {
	Entry       // with only what its name says unless it is listed
	Listed bool // the manifest has it
}

// List returns what there is to start from: what the manifest has, and what came
// after it, by falling fencing number; then what else is there, such as what a
// process left that died. So it finds them whatever became of the manifest.
func List(ctx context.Context, s Store) (Listing, error) {
	names, err := s.Names(ctx) // before the manifest: that has their claims
	if err != nil {
		return Listing{}, err
	}
	m, rev, err := s.Manifest(ctx)
	var l Listing
	switch {
	case err != nil && !errors.Is(err, ErrManifest):
		return Listing{}, err
	case err != nil:
		l.Fault = err
	}
	for _, e := range m.Snapshots {
		l.Snapshots = append(l.Snapshots, Found{e, true})
	}
	late := 0
	for _, f := range unlisted(&m, names) {
		l.Snapshots = append(l.Snapshots, f)
		if f.Fence > m.Fence {
			late++
		}
	}
	if late > 0 && l.Fault == nil {
		if l.Fault = ErrOldManifest; rev == 0 {
			l.Fault = ErrNoManifest
		}
	}
	left := func(f Found) int { // of a process that died
		if !f.Listed && f.Fence <= m.Fence {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(l.Snapshots, func(a, b Found) int {
		return cmp.Or(cmp.Compare(left(a), left(b)), cmp.Compare(b.Fence, a.Fence))
	})
	return l, nil
}

// unlisted returns the finished snapshots among the names that the manifest does
// not have, newest first. One with a number near the end was made by hand, and
// claims could not go on after it: it does not count.
func unlisted(m *Manifest, names []string) (list []Found) {
	for _, n := range names {
		seq, fence, ok := parseName(n)
		if ok && fence <= maxFence/2 && !slices.ContainsFunc(m.Snapshots, func(e Entry) bool { return e.Name == n }) {
			list = append(list, Found{Entry: Entry{Name: n, Seq: seq, Fence: fence}})
		}
	}
	slices.SortFunc(list, func(a, b Found) int { return cmp.Or(cmp.Compare(b.Fence, a.Fence), cmp.Compare(b.Seq, a.Seq)) })
	return list
}
