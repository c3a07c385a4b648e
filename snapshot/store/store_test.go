package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/broker"
)

const testStream = "kvatlas_default_m-b16-0123456789abcdef"

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// both calls f with a store of each kind. again opens the same store once more,
// as another process would.
func both(t *testing.T, f func(t *testing.T, s Store, again func() Store)) {
	t.Run("dir", func(t *testing.T) {
		dir := t.TempDir()
		open := func() Store {
			s, err := OpenDir(dir, testStream, nil)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		f(t, open(), open)
	})
	t.Run("bucket", func(t *testing.T) {
		b, err := broker.Open(deadline(t), broker.Config{URL: broker.Embedded, DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		open := func() Store {
			s, err := OpenBucket(deadline(t), b.Conn(), "default", testStream, BucketConfig{Spool: t.TempDir(), Part: 100_000})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		f(t, open(), open)
	})
}

func content(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func put(ctx context.Context, s Store, name string, data []byte) error {
	return s.Put(ctx, name, func(w io.Writer) error {
		_, err := io.Copy(w, bytes.NewReader(data))
		return err
	})
}

func get(ctx context.Context, s Store, name string) ([]byte, error) {
	f, err := s.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was read
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	again, err := io.ReadAll(f)
	if !bytes.Equal(data, again) {
		return nil, errors.New("the second reading differs")
	}
	return data, err
}

func TestSnapshotsAreKept(t *testing.T) {
	both(t, func(t *testing.T, s Store, again func() Store) {
		ctx := deadline(t)
		var names []string
		for i, size := range []int{0, 1, 100_000, 250_001} { // one is a part exactly
			name := Name(uint64(i), 1)
			names = append(names, name)
			if err := put(ctx, s, name, content(uint64(i), size)); err != nil {
				t.Fatal(err)
			}
			if got, err := get(ctx, again(), name); err != nil || !bytes.Equal(got, content(uint64(i), size)) {
				t.Fatalf("%d bytes of %d, %v", len(got), size, err)
			}
		}
		broken := errors.New("broken")
		err := s.Put(ctx, Name(9, 1), func(w io.Writer) error {
			if _, err := w.Write(content(1, 150_000)); err != nil {
				return err
			}
			return broken
		})
		if !errors.Is(err, broken) {
			t.Errorf("a writer that fails: %v", err)
		}
		if got, err := s.Names(ctx); err != nil || !slices.Equal(got, names) {
			t.Errorf("names %q, %v, want %q", got, err, names)
		}
		if _, err := s.Open(ctx, Name(9, 1)); !errors.Is(err, ErrNotFound) {
			t.Errorf("what was not put: %v", err)
		}
		for _, bad := range []string{"", "../x", "x.kvsnap", "manifest-1"} {
			if err := put(ctx, s, bad, nil); err == nil {
				t.Errorf("%q is taken for a name", bad)
			}
		}
		if err := s.Delete(ctx, names[3]); err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(ctx, names[3]); err != nil {
			t.Errorf("deleting it again: %v", err)
		}
		if got, err := s.Names(ctx); err != nil || !slices.Equal(got, names[:3]) {
			t.Errorf("names %q, %v after a deletion", got, err)
		}
	})
}

// Whoever claimed last writes; everybody before changes nothing any more.
func TestOnlyTheLastClaimCounts(t *testing.T) {
	both(t, func(t *testing.T, s Store, again func() Store) {
		ctx := deadline(t)
		if l, err := List(ctx, s); err != nil || len(l.Snapshots) != 0 || l.Fault != nil {
			t.Fatalf("%+v, %v of an empty store", l, err)
		}
		var mu sync.Mutex
		var fences []uint64
		var claiming sync.WaitGroup
		for i := range 4 {
			claiming.Go(func() {
				fence, err := Claim(ctx, again(), fmt.Sprint("replica", i), nil)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				fences = append(fences, fence)
			})
		}
		claiming.Wait()
		slices.Sort(fences)
		if len(slices.Compact(slices.Clone(fences))) != 4 {
			t.Fatalf("fencing numbers %d", fences)
		}
		last := fences[3]
		publish := func(seq, fence uint64) error {
			name := Name(seq, fence)
			if err := put(ctx, s, name, content(seq, 10)); err != nil {
				t.Fatal(err)
			}
			_, err := Publish(ctx, again(), Entry{Name: name, Seq: seq, Fence: fence, Digest: 1 << 63}, 2)
			return err
		}
		if err := publish(5, fences[0]); !errors.Is(err, ErrFenced) {
			t.Errorf("an older claim publishes: %v", err)
		}
		if err := Sweep(ctx, s, fences[0]); !errors.Is(err, ErrFenced) {
			t.Errorf("an older claim sweeps: %v", err)
		}
		for seq := range uint64(4) {
			if err := publish(seq, last); err != nil {
				t.Fatal(err)
			}
		}
		if err := put(ctx, s, Name(7, last+1), nil); err != nil { // of one that claims next
			t.Fatal(err)
		}
		if err := Sweep(ctx, s, last); err != nil {
			t.Fatal(err)
		}
		want := []string{Name(2, last), Name(3, last), Name(7, last+1)}
		if got, err := s.Names(ctx); err != nil || !slices.Equal(got, want) {
			t.Errorf("names %q, %v, want %q", got, err, want)
		}
		if got, fault := list(ctx, t, again()); !slices.Equal(got, []string{want[2], want[1], want[0]}) || !errors.Is(fault, ErrOldManifest) {
			t.Errorf("there are %q, %v", got, fault)
		}
		m, rev, err := s.Manifest(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if m.Snapshots[0].Digest != 1<<63 {
			t.Errorf("%+v", m)
		}
		if err := s.Replace(ctx, m, rev-1); !errors.Is(err, ErrConflict) {
			t.Errorf("replacing an older manifest: %v", err)
		}
		if err := s.Replace(ctx, m, 0); !errors.Is(err, ErrConflict) {
			t.Errorf("replacing no manifest: %v", err)
		}
	})
}

// What a process leaves that dies while it stores a snapshot is taken away.
func TestOrphanChunksAreTakenAway(t *testing.T) {
	both(t, func(t *testing.T, s Store, _ func() Store) {
		b, ok := s.(*Bucket)
		if !ok {
			return
		}
		ctx := deadline(t)
		fence, err := Claim(ctx, s, "a", nil)
		if err != nil {
			t.Fatal(err)
		}
		name := Name(1, fence)
		if err := put(ctx, s, name, content(1, 10)); err != nil {
			t.Fatal(err)
		}
		if _, err := Publish(ctx, s, Entry{Name: name, Fence: fence}, 2); err != nil {
			t.Fatal(err)
		}
		if _, err := b.js.Publish(ctx, "$O."+bucketName(testStream)+".C.orphan", content(2, 10)); err != nil {
			t.Fatal(err)
		}
		if err := Sweep(ctx, s, fence); err != nil {
			t.Fatal(err)
		}
		st, err := b.js.Stream(ctx, "OBJ_"+bucketName(testStream))
		if err != nil {
			t.Fatal(err)
		}
		info, err := st.Info(ctx, jetstream.WithSubjectFilter("$O.*.C.>"))
		if err != nil {
			t.Fatal(err)
		}
		for subject := range info.State.Subjects {
			if strings.HasSuffix(subject, "orphan") {
				t.Error("the orphan is still there")
			}
		}
		if got, err := get(ctx, s, name); err != nil || len(got) != 10 {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}

// A server that has lost chunks of a snapshot is not waited for.
func TestLostChunksAreNoticed(t *testing.T) {
	both(t, func(t *testing.T, s Store, _ func() Store) {
		b, ok := s.(*Bucket)
		if !ok {
			return
		}
		ctx := deadline(t)
		name := Name(1, 1)
		if err := put(ctx, s, name, content(1, 250_000)); err != nil { // three objects, the first of one chunk
			t.Fatal(err)
		}
		if got, err := get(ctx, s, name); err != nil || len(got) != 250_000 {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		o, err := b.os.GetInfo(ctx, partName(name, 1))
		if err != nil {
			t.Fatal(err)
		}
		st, err := b.js.Stream(ctx, "OBJ_"+bucketName(testStream))
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Purge(ctx, jetstream.WithPurgeSubject(b.objects.ChunkSubject(o.NUID))); err != nil {
			t.Fatal(err)
		}
		if _, err := get(ctx, s, name); !errors.Is(err, ErrLost) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it reads: %v", err)
		}
	})
}

// A snapshot that is deleted leaves nothing: years of them would all be listed with each new one. What earlier
// versions left of theirs goes, too.
func TestNothingIsLeftOfDeletedSnapshots(t *testing.T) {
	both(t, func(t *testing.T, s Store, _ func() Store) {
		b, ok := s.(*Bucket)
		if !ok {
			return
		}
		ctx := deadline(t)
		for i := range uint64(2) {
			if err := put(ctx, s, Name(1, 1+i), content(1, 250_000)); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.os.Delete(ctx, partName(Name(1, 1), 1)); err != nil { // as they did
			t.Fatal(err)
		}
		for i := range uint64(2) {
			if err := s.Delete(ctx, Name(1, 1+i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := put(ctx, s, Name(1, 3), content(1, 10)); err != nil {
			t.Fatal(err)
		}
		if err := b.os.Delete(ctx, partName(Name(1, 3), 0)); err != nil {
			t.Fatal(err)
		}
		if names, err := s.Names(ctx); err != nil || len(names) != 0 {
			t.Errorf("it lists %q, %v", names, err)
		}
		if err := b.Clean(ctx); err != nil {
			t.Error(err)
		}
		st, err := b.js.Stream(ctx, "OBJ_"+bucketName(testStream))
		if err != nil {
			t.Fatal(err)
		}
		if n := st.CachedInfo().State.Msgs; n != 0 {
			t.Errorf("%d messages are left", n)
		}
	})
}
