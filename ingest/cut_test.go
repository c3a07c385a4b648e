package ingest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot"
)

// snap takes a snapshot of what the replica has and loads it into a new set.
func (n *natsBench) snap(r *replica, shards int) (*shard.Set, Start) {
	n.t.Helper()
	w := snapshot.NewWriter(r.set.Lookup(testSpace), snapshot.Options{Slice: 100, ChunkBytes: 1 << 12})
	defer w.Close()
	ctx := deadline(n.t)
	start, err := r.Cut(ctx, stream.Name("default", testSpace), func() error { return w.Begin(ctx) }, w.Begun)
	if err != nil {
		n.t.Fatal(err)
	}
	m := snapshot.Meta{Space: snapshot.Space(testSpace)}
	for _, k := range start.Ranks {
		m.Ranks = append(m.Ranks, snapshot.Publisher{Worker: k.Worker, DPRank: k.DPRank})
	}
	var buf bytes.Buffer
	if _, err := w.Write(ctx, &buf, m); err != nil {
		n.t.Fatal(err)
	}
	set := shard.New(shard.Config{Shards: shards})
	n.t.Cleanup(set.Close)
	sp, err := set.Open(testSpace)
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := snapshot.Restore(ctx, bytes.NewReader(buf.Bytes()), sp, snapshot.Options{}, nil, nil); err != nil {
		n.t.Fatal(err)
	}
	return set, start
}

// Whenever a snapshot is taken, whatever flows meanwhile: from it on, the
// stream leads where everybody else is, and nothing is applied twice or missed.
func TestASnapshotAndTheStreamFromItsPosition(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	name := stream.Name("default", testSpace)
	r := n.open("one", nil, nil)
	var later []*replica
	n.fleet(3, 100, func() {
		for i := range 4 {
			from := r
			if i == 3 {
				from = later[1] // a snapshot of what began with a snapshot
			}
			waittest.For(t, "something was read", func() bool { return from.position() > uint64(50*(i+1)) })
			set, start := n.snap(from, 1+i%3)
			later = append(later, n.open("later"+string(rune('a'+i)), set, map[string]Start{name: start}))
		}
	})
	n.converged(r)
	for i, l := range later {
		n.converged(l)
		if got := l.counter("kvatlas_ingest_void_positions_total"); got != 0 {
			t.Errorf("replica %d: %d void positions", i, got)
		}
	}
	// After Close it is what there was in the end.
	r.Close()
	set, start := n.snap(r, 2)
	if a, b := digest(t, set), n.truth.digest(); a != b {
		t.Errorf("digest %x of the last snapshot, the oracle's %x", a, b)
	}
	last := n.open("last", set, map[string]Start{name: start})
	n.converged(last)
	if got := last.counter("kvatlas_ingest_messages_total"); got > 20 { // heartbeats that came since
		t.Errorf("%d messages were read again", got)
	}
	if _, err := r.Cut(deadline(t), "another", nil, nil); !errors.Is(err, ErrNoStream) {
		t.Errorf("a stream that is not read: %v", err)
	}
}

// A server that lost its last messages gives their numbers to others: the
// position knows by the time of its last message.
func TestAPositionOfAnotherMessageIsVoid(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	p, e := n.worker(1, nil)
	n.run(p, e, 300)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	r := n.open("one", nil, nil)
	n.converged(r)
	set, start := n.snap(r, 1)
	if start.Stored.IsZero() {
		t.Fatal("no time of the last message")
	}
	name := stream.Name("default", testSpace)
	again := n.open("two", set, map[string]Start{name: start})
	n.converged(again)
	if got := again.counter("kvatlas_ingest_void_positions_total"); got != 0 {
		t.Errorf("%d void positions where nothing was lost", got)
	}
	set, start = n.snap(r, 1)
	start.Stored = start.Stored.Add(-1)
	third := n.open("three", set, map[string]Start{name: start})
	waittest.For(t, "the position is void", func() bool { return third.counter("kvatlas_ingest_void_positions_total") == 1 })
	waittest.For(t, "the ranks are asked for", func() bool { return third.asked.count(Void) > 0 })
	n.converged(third)
}
