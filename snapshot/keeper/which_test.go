package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// shelf is the store of the world's stream, as somebody with access to it has it.
type shelf struct {
	w *world
	store.Store
}

func (w *world) shelf() shelf {
	w.t.Helper()
	k, err := Open(Config{Conn: w.nc, Replica: "test", Set: shard.New(shard.Config{}), Dir: w.dir, Spool: w.t.TempDir()})
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := k.Store(deadline(w.t), stream.Name("default", testSpace))
	if err != nil {
		w.t.Fatal(err)
	}
	return shelf{w, s}
}

func (s shelf) read(name string) []byte {
	s.w.t.Helper()
	f, err := s.Open(deadline(s.w.t), name)
	if err != nil {
		s.w.t.Fatal(err)
	}
	data, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		s.w.t.Fatal(err)
	}
	return data
}

func (s shelf) write(name string, data []byte) {
	s.w.t.Helper()
	if err := s.put(name, data); err != nil {
		s.w.t.Fatal(err)
	}
}

// put writes a file in the place of another. A replica's sweep may be faster.
func (s shelf) put(name string, data []byte) error {
	if err := s.Delete(deadline(s.w.t), name); err != nil {
		return err
	}
	return s.Put(deadline(s.w.t), name, func(to io.Writer) error { _, err := io.Copy(to, bytes.NewReader(data)); return err })
}

// list changes the manifest.
func (s shelf) list(change func(m *store.Manifest)) {
	s.w.t.Helper()
	if err := s.replace(change); err != nil {
		s.w.t.Fatal(err)
	}
}

// replace does so, unless a replica is faster.
func (s shelf) replace(change func(m *store.Manifest)) error {
	m, rev, err := s.Manifest(deadline(s.w.t))
	if err != nil {
		return err
	}
	change(&m)
	return s.Replace(deadline(s.w.t), m, rev)
}

// forge returns a whole snapshot with what data has, of something else.
func forge(t *testing.T, data []byte, change func(m *snapshot.Meta)) []byte {
	t.Helper()
	info, err := snapshot.Check(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	m := info.Meta
	m.Ranks = slices.Clone(append(m.Ranks, m.Idle...))
	m.Idle = nil
	change(&m)
	set := shard.New(shard.Config{})
	defer set.Close()
	open := func(id event.Space) *shard.Space {
		sp, err := set.Open(id)
		if err != nil {
			t.Fatal(err)
		}
		return sp
	}
	sp := open(event.Space(m.Space))
	if m.Space == info.Meta.Space {
		if _, err := snapshot.Restore(deadline(t), bytes.NewReader(data), sp, snapshot.Options{}, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	w := snapshot.NewWriter(sp, snapshot.Options{})
	if err := w.Begin(deadline(t)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := w.Write(deadline(t), &out, m); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// shelved returns a world with n snapshots, newest first, and no replica, and
// what it is that no publisher says any more: they are dead, and the stream is
// trimmed, so that an index is right only from a right snapshot on.
func shelved(t *testing.T, dir string, n int) (*world, shelf, []store.Entry) {
	t.Helper()
	w := newWorld(t, dir)
	taker := w.start("taker", func(c *Config) { c.Threshold, c.Keep = 30, n })
	for i := 0; len(w.manifest().Snapshots) < n || w.info().FirstSeq == 1; i++ {
		w.publish(60)
		taker.equal()
		last := w.info().LastSeq
		waittest.For(t, "a snapshot", func() bool {
			m := w.manifest()
			return len(m.Snapshots) > 0 && m.Snapshots[0].Seq+20 > last
		})
	}
	taker.crash()
	for i, p := range w.pubs {
		w.kill(p)
		w.pubs[i] = nil
	}
	return w, w.shelf(), w.manifest().Snapshots
}

// counts returns a counter of a Keeper's metrics.
func counts(m *metrics.Set, name, label string) uint64 {
	return m.GetOrCreateCounter(fmt.Sprintf("kvatlas_snapshot%s{%s}", name, label)).Get()
}

func eachStore(t *testing.T, f func(t *testing.T, dir string)) {
	t.Run("bucket", func(t *testing.T) { f(t, "") })
	t.Run("dir", func(t *testing.T) { f(t, t.TempDir()) })
}

// A file that is not what was written under its name, or is of another stream,
// is refused, counted by reason, and the next good one is taken.
func TestASnapshotThatIsAnotherIsRefused(t *testing.T) {
	eachStore(t, func(t *testing.T, dir string) {
		w, s, snaps := shelved(t, dir, 3)
		newest := snaps[0].Name
		whole := s.read(newest)
		manifest, _, err := s.Manifest(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		forged := func(change func(m *snapshot.Meta)) func() {
			return func() { s.write(newest, forge(t, whole, change)) }
		}
		listed := func(change func(e *store.Entry)) func() {
			return func() { s.list(func(m *store.Manifest) { change(&m.Snapshots[0]) }) }
		}
		for _, tc := range []struct {
			name, reason string
			spoil        func()
		}{
			{"an older one under the newest name", "entry", func() { s.write(newest, s.read(snaps[1].Name)) }},
			{"another namespace's", "stream", forged(func(m *snapshot.Meta) { m.Stream = stream.Name("prod", testSpace) })},
			{"another space's", "stream", forged(func(m *snapshot.Meta) { m.Space.BlockSize, m.Ranks = 32, nil })},
			{"another space's by its name", "stream", forged(func(m *snapshot.Meta) { m.Space.Group, m.Ranks = "other", nil })},
			{"of another moment of the same sequence", "entry", forged(func(m *snapshot.Meta) { m.Written = m.Written.Add(time.Second) })},
			{"of another stream of the same name", "entry", forged(func(m *snapshot.Meta) { m.Created = m.Created.Add(time.Nanosecond) })},
			{"of another message", "entry", forged(func(m *snapshot.Meta) { m.Stored = m.Stored.Add(time.Nanosecond) })},
			{"of another claim", "entry", forged(func(m *snapshot.Meta) { m.Fence++ })},
			{"of another sequence", "entry", forged(func(m *snapshot.Meta) { m.Seq++ })},
			{"with less in it", "entry", forged(func(m *snapshot.Meta) { m.Ranks = m.Ranks[:1] })},
			{"another digest in the manifest", "entry", listed(func(e *store.Entry) { e.Digest++ })},
			{"another size in the manifest", "entry", listed(func(e *store.Entry) { e.Bytes-- })},
			{"another sequence in the manifest", "entry", listed(func(e *store.Entry) { e.Seq++ })},
			{"another number in the manifest", "entry", listed(func(e *store.Entry) { e.Fence++ })},
			{"cut short", "damaged", func() { s.write(newest, whole[:len(whole)/2]) }},
			{"empty", "damaged", func() { s.write(newest, nil) }},
			{"with something behind it", "damaged", func() { s.write(newest, append(slices.Clone(whole), 0)) }},
			{"two in one", "damaged", func() { s.write(newest, append(slices.Clone(whole), whole...)) }},
			{"gone", "missing", func() {
				if err := s.Delete(deadline(t), newest); err != nil {
					t.Fatal(err)
				}
			}},
		} {
			tc.spoil()
			m := metrics.NewSet()
			n := w.start("b", func(c *Config) { c.Metrics = m })
			if start := n.starts[stream.Name("default", testSpace)]; start.Seq != snaps[1].Seq+1 {
				t.Errorf("%s: it starts at %d, want %d", tc.name, start.Seq, snaps[1].Seq+1)
			}
			if got := counts(m, "_refused_total", `reason="`+tc.reason+`"`); got != 1 {
				t.Errorf("%s: refused %d times because of %s", tc.name, got, tc.reason)
			}
			n.equal()
			waittest.Until(t, n.in.Ready)
			if got := n.count(`kvatlas_ingest_void_positions_total`) + n.count(`kvatlas_ingest_reloads_total{result="loaded"}`); got != 0 {
				t.Errorf("%s: %d void positions and reloads", tc.name, got)
			}
			n.crash()
			s.write(newest, whole)
			s.list(func(m *store.Manifest) { m.Snapshots = slices.Clone(manifest.Snapshots) })
		}
		n := w.start("c", nil)
		if start := n.starts[stream.Name("default", testSpace)]; start.Seq != snaps[0].Seq+1 {
			t.Errorf("put back, it starts at %d, want %d", start.Seq, snaps[0].Seq+1)
		}
		n.equal()
	})
}

// A manifest that is lost, damaged, or an older one: the newest snapshot is found
// all the same, and the next that is taken lists the others again.
func TestSnapshotsWithoutTheirManifest(t *testing.T) {
	eachStore(t, func(t *testing.T, dir string) {
		w, s, snaps := shelved(t, dir, 9)
		for _, tc := range []struct {
			name  string
			spoil func(m *store.Manifest)
		}{
			{"emptied", func(m *store.Manifest) { *m = store.Manifest{} }},
			{"older", func(m *store.Manifest) { m.Snapshots, m.Fence = m.Snapshots[4:], m.Snapshots[4].Fence }},
		} {
			whole, _, err := s.Manifest(deadline(t))
			if err != nil {
				t.Fatal(err)
			}
			s.list(tc.spoil)
			// What is newest by its name and cannot be right.
			bad := store.Name(1<<40, snaps[0].Fence+1)
			s.write(bad, s.read(snaps[0].Name))
			m := metrics.NewSet()
			n := w.start("b", func(c *Config) { c.Metrics = m })
			if start := n.starts[stream.Name("default", testSpace)]; start.Seq != snaps[0].Seq+1 {
				t.Errorf("%s: it starts at %d, want %d", tc.name, start.Seq, snaps[0].Seq+1)
			}
			if got := counts(m, "_manifest_faults_total", `fault="old"`); got != 1 {
				t.Errorf("%s: not counted", tc.name)
			}
			if got := counts(m, "_refused_total", `reason="entry"`); got != 1 {
				t.Errorf("%s: refused %d", tc.name, got)
			}
			n.equal()
			n.crash()
			s.list(func(m *store.Manifest) { *m = whole })
			if err := s.Delete(deadline(t), bad); err != nil {
				t.Fatal(err)
			}
		}
		// The next one that is taken puts the manifest in order.
		s.list(func(m *store.Manifest) { *m = store.Manifest{} })
		w.pubs[0] = w.publisher(0)
		w.oracle.Clear(0, 0, true)
		w.held[0] = nil
		m := metrics.NewSet()
		n := w.start("c", func(c *Config) { c.Metrics, c.Keep = m, 4 }) // the first is due at once
		w.publish(30)
		n.equal()
		waittest.For(t, "a new snapshot", func() bool { return counts(m, "s_total", `because="interval"`) > 0 })
		for i := range snaps {
			snaps[i].TookMs = 0 // that was said in the manifest only
		}
		got := w.manifest()
		if got.Fence <= snaps[0].Fence || len(got.Snapshots) != 4 || got.Snapshots[1] != snaps[0] || got.Snapshots[3] != snaps[2] {
			t.Errorf("after fencing number %d the manifest has %+v, want the newest of %+v", snaps[0].Fence, got, snaps)
		}
		if got := m.GetOrCreateCounter("kvatlas_snapshot_adopted_total").Get(); got != 4 {
			t.Errorf("%d came in again", got)
		}
	})
}
