package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// fill publishes n snapshots, each under a claim of its own, and returns their
// names, newest first.
func fill(ctx context.Context, t *testing.T, s Store, n int) (names []string) {
	t.Helper()
	for seq := range uint64(n) {
		fence, err := Claim(ctx, s, "a", nil)
		if err != nil {
			t.Fatal(err)
		}
		name := Name((100*seq)%500, fence) // of streams that were made again
		if err := put(ctx, s, name, content(seq, 10)); err != nil {
			t.Fatal(err)
		}
		if _, err := Publish(ctx, s, Entry{Name: name, Fence: fence, Created: time.Unix(0, int64(fence))}, 100); err != nil {
			t.Fatal(err)
		}
		names = slices.Insert(names, 0, name)
	}
	return names
}

// hand is what a backup, or somebody, may do to a store's manifest.
type hand struct {
	ctx context.Context
	t   *testing.T
	s   Store
}

func (h hand) check(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// path returns the file of a directory's newest manifest.
func (h hand) path(d *Dir) string {
	revs, err := d.manifests()
	h.check(err)
	return d.path(manifestName(revs[len(revs)-1]))
}

func (h hand) read() []byte {
	switch s := h.s.(type) {
	case *Dir:
		data, err := os.ReadFile(h.path(s))
		h.check(err)
		return data
	case *Bucket:
		e, err := s.kv.Get(h.ctx, s.manifestKey())
		h.check(err)
		return e.Value()
	}
	return nil
}

// write puts another manifest under the newest name.
func (h hand) write(data []byte) {
	switch s := h.s.(type) {
	case *Dir:
		h.check(os.WriteFile(h.path(s), data, 0o600))
	case *Bucket:
		_, err := s.kv.Put(h.ctx, s.manifestKey(), data)
		h.check(err)
	}
}

func (h hand) remove() {
	switch s := h.s.(type) {
	case *Dir:
		paths, err := filepath.Glob(s.path(manifestPrefix + "*"))
		h.check(err)
		for _, p := range paths {
			h.check(os.Remove(p))
		}
	case *Bucket:
		h.check(s.kv.Purge(h.ctx, s.manifestKey()))
	}
}

func list(ctx context.Context, t *testing.T, s Store) (names []string, fault error) {
	t.Helper()
	l, err := List(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range l.Snapshots {
		names = append(names, f.Name)
	}
	return names, l.Fault
}

// Snapshots are found whatever became of the manifest, newest first. The next
// claim has a number beyond all that there was, and lists them again.
func TestSnapshotsAreFoundWithoutTheirManifest(t *testing.T) {
	other, err := encodeManifest(Manifest{Fence: 1 << 40}, "kvatlas_other_m-b16-0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	beyond, err := encodeManifest(Manifest{Fence: 1<<64 - 1}, testStream)
	if err != nil {
		t.Fatal(err)
	}
	var older []byte
	for name, tc := range map[string]struct {
		spoil func(h hand, whole []byte)
		fault error
	}{
		"whole":            {func(hand, []byte) {}, nil},
		"missing":          {func(h hand, _ []byte) { h.remove() }, ErrNoManifest},
		"empty":            {func(h hand, _ []byte) { h.write([]byte("")) }, ErrManifest},
		"cut short":        {func(h hand, whole []byte) { h.write(whole[:len(whole)/2]) }, ErrManifest},
		"one bit":          {func(h hand, whole []byte) { whole[len(whole)/2] ^= 1; h.write(whole) }, ErrManifest},
		"another stream's": {func(h hand, _ []byte) { h.write(other) }, ErrManifest},
		"out of range":     {func(h hand, _ []byte) { h.write(beyond) }, ErrManifest},
		"older":            {func(h hand, _ []byte) { h.write(older) }, ErrOldManifest},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s Store, again func() Store) {
				ctx := deadline(t)
				h := hand{ctx, t, s}
				names := fill(ctx, t, s, 3)
				older = h.read()
				names = append(fill(ctx, t, s, 6), names...)
				tc.spoil(h, h.read())
				got, fault := list(ctx, t, again())
				if !slices.Equal(got, names) || !errors.Is(fault, tc.fault) || (fault == nil) != (tc.fault == nil) {
					t.Errorf("found %q, %v; want %q, %v", got, fault, names, tc.fault)
				}
				bad := names[1]
				fence, err := Claim(ctx, again(), "b", func(_ context.Context, name string) (Entry, bool) {
					return Entry{Name: name, Fence: fenceOf(name)}, name != bad
				})
				if err != nil || fence <= fenceOf(names[0]) {
					t.Fatalf("claimed with %d after %d, %v", fence, fenceOf(names[0]), err)
				}
				if tc.fault != nil {
					names = slices.DeleteFunc(names, func(n string) bool { return n == bad })
				}
				if err := Sweep(ctx, s, fence); err != nil {
					t.Fatal(err)
				}
				if got, fault := list(ctx, t, again()); !slices.Equal(got, names) || fault != nil {
					t.Errorf("after a claim there are %q, %v; want %q", got, fault, names)
				}
			})
		})
	}
}

// Claims that race for a manifest that was lost get numbers of their own, and
// none loses what another lists again.
func TestClaimsRaceForALostManifest(t *testing.T) {
	both(t, func(t *testing.T, s Store, again func() Store) {
		ctx := deadline(t)
		names := fill(ctx, t, s, 4)
		hand{ctx, t, s}.remove()
		fences := make(chan uint64, 8)
		var claiming sync.WaitGroup
		for i := range cap(fences) {
			from := again()
			claiming.Go(func() {
				fence, err := Claim(ctx, from, fmt.Sprint("replica", i), func(_ context.Context, name string) (Entry, bool) {
					return Entry{Name: name, Fence: fenceOf(name)}, true
				})
				if err != nil && !errors.Is(err, ErrConflict) { // it may be the slower ten times
					t.Error(err)
				}
				fences <- fence
			})
		}
		claiming.Wait()
		close(fences)
		seen := map[uint64]bool{0: false}
		for f := range fences {
			if f != 0 && (seen[f] || f <= fenceOf(names[0])) {
				t.Errorf("number %d was given twice, or before", f)
			}
			seen[f] = true
		}
		if got, fault := list(ctx, t, s); !slices.Equal(got, names) || fault != nil {
			t.Errorf("there are %q, %v; want %q", got, fault, names)
		}
	})
}

// A name that was made by hand does not use up the fencing numbers.
func TestANameWithTheLastFencingNumber(t *testing.T) {
	both(t, func(t *testing.T, s Store, _ func() Store) {
		ctx := deadline(t)
		for _, fence := range []uint64{maxFence, maxFence / 2} {
			if err := put(ctx, s, Name(1, fence), nil); err != nil {
				t.Fatal(err)
			}
			names := fill(ctx, t, s, 2)
			if got, fault := list(ctx, t, s); fault != nil || got[0] != names[0] {
				t.Errorf("after %d there are %q, %v", fence, got, fault)
			}
		}
	})
}

// What the manifest has and is gone is no fallback: the next claim drops it.
func TestAClaimDropsWhatIsGone(t *testing.T) {
	both(t, func(t *testing.T, s Store, _ func() Store) {
		ctx := deadline(t)
		names := fill(ctx, t, s, 3)
		if err := s.Delete(ctx, names[0]); err != nil {
			t.Fatal(err)
		}
		if got, fault := list(ctx, t, s); !slices.Equal(got, names) || fault != nil { // it is missed when it is opened
			t.Errorf("found %q, %v", got, fault)
		}
		if _, err := Claim(ctx, s, "b", nil); err != nil {
			t.Fatal(err)
		}
		if m, _, err := s.Manifest(ctx); err != nil || len(m.Snapshots) != 2 || m.Snapshots[0].Name != names[1] {
			t.Errorf("%+v, %v", m, err)
		}
	})
}

// What a process left that died comes after all that counts, and is not listed
// by a claim.
func TestLeftoversComeLast(t *testing.T) {
	both(t, func(t *testing.T, s Store, _ func() Store) {
		ctx := deadline(t)
		names := fill(ctx, t, s, 2)
		fence, err := Claim(ctx, s, "dies", nil)
		if err != nil {
			t.Fatal(err)
		}
		left := Name(700, fence)
		if err := put(ctx, s, left, content(7, 10)); err != nil {
			t.Fatal(err)
		}
		if got, fault := list(ctx, t, s); !slices.Equal(got, append(slices.Clone(names), left)) || fault != nil {
			t.Errorf("found %q, %v", got, fault)
		}
		if _, err := Claim(ctx, s, "b", func(_ context.Context, name string) (Entry, bool) { return Entry{Name: name}, true }); err != nil {
			t.Fatal(err)
		}
		if m, _, err := s.Manifest(ctx); err != nil || len(m.Snapshots) != 2 {
			t.Errorf("%+v, %v", m, err)
		}
	})
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		Name(0, 0): true, Name(1<<64-1, maxFence): true, Name(1, maxFence+1): false, Name(1, 1<<64-1): false,
		"99999999999999999999-1.kvsnap": false, "00000000000000000001-01.kvsnap": false, "1-1.kvsnap": false,
		"00000000000000000001-99999999999999999999.kvsnap": false, "00000000000000000001-1.kvsnap.0": false, "": false,
	} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
	if seq, fence, ok := parseName(Name(12, 34)); seq != 12 || fence != 34 || !ok {
		t.Error(seq, fence, ok)
	}
	for _, stream := range []string{"", ".", "..", "../s", "a/b", "/a"} {
		if _, err := OpenDir(t.TempDir(), stream, nil); err == nil {
			t.Errorf("%q is taken for a stream's directory", stream)
		}
	}
}
