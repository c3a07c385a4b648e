package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
)

// crashDisk is a file system that fails at a step, once or from then on, and forgets
// at a crash what was not synced.
type crashDisk struct {
	rng   *rand.Rand
	step  int
	fail  int  // step at which it fails; 0: never
	stays bool // and all later ones: the machine is down
	err   error

	names   map[string]*inode // as the running system sees it
	durable map[string]*inode // what is on the disk
}

type inode struct {
	data   []byte
	synced int // bytes that are on the disk
}

var errDisk = errors.New("input/output error")

func newDisk(seed uint64) *crashDisk {
	return &crashDisk{rng: rand.New(rand.NewPCG(seed, 7)), err: errDisk, names: map[string]*inode{}, durable: map[string]*inode{}}
}

func (d *crashDisk) fails() bool {
	d.step++
	return d.fail > 0 && (d.step == d.fail || d.stays && d.step > d.fail)
}

// crash loses what is not on the disk: of unsynced names any may be there, of
// unsynced data any beginning, and rubbish behind it.
func (d *crashDisk) crash() {
	for name, n := range d.names {
		if d.durable[name] != n && d.rng.IntN(2) == 0 {
			d.durable[name] = n
		}
	}
	for name := range d.durable {
		if d.names[name] == nil && d.rng.IntN(2) == 0 {
			delete(d.durable, name)
		}
	}
	d.names = map[string]*inode{}
	lost := map[*inode]bool{}
	for name, n := range d.durable {
		if !lost[n] && n.synced < len(n.data) {
			keep := n.synced + d.rng.IntN(len(n.data)-n.synced+1)
			for i := keep; i < len(n.data); i++ {
				n.data[i] = 0
			}
			if d.rng.IntN(2) == 0 {
				n.data = n.data[:keep]
			}
		}
		lost[n] = true
		n.synced = len(n.data)
		d.names[name] = n
	}
	d.fail, d.stays = 0, false
}

type diskFile struct {
	d *crashDisk
	n *inode
}

func (f diskFile) Write(p []byte) (int, error) {
	if f.d.fails() {
		k := f.d.rng.IntN(len(p) + 1)
		f.n.data = append(f.n.data, p[:k]...)
		return k, f.d.err
	}
	f.n.data = append(f.n.data, p...)
	return len(p), nil
}

func (f diskFile) Sync() error {
	if f.d.fails() {
		return f.d.err
	}
	f.n.synced = len(f.n.data)
	return nil
}

func (f diskFile) Close() error {
	if f.d.fails() {
		return f.d.err
	}
	return nil
}

func (d *crashDisk) MkdirAll(string) error { return nil }

func (d *crashDisk) Create(name string) (WriteFile, error) {
	if d.fails() {
		return nil, d.err
	}
	if d.names[name] != nil {
		return nil, fs.ErrExist
	}
	n := &inode{}
	d.names[name] = n
	return diskFile{d, n}, nil
}

type reader struct{ *bytes.Reader }

func (reader) Close() error { return nil }

func (d *crashDisk) Open(name string) (File, error) {
	data, err := d.ReadFile(name)
	return reader{bytes.NewReader(data)}, err
}

func (d *crashDisk) ReadFile(name string) ([]byte, error) {
	n := d.names[name]
	if n == nil {
		return nil, fs.ErrNotExist
	}
	return bytes.Clone(n.data), nil
}

func (d *crashDisk) Rename(from, to string) error {
	if d.fails() {
		return d.err
	}
	d.names[to] = d.names[from]
	delete(d.names, from)
	return nil
}

func (d *crashDisk) Link(from, to string) error {
	if d.fails() {
		return d.err
	}
	if d.names[to] != nil {
		return fs.ErrExist
	}
	d.names[to] = d.names[from]
	return nil
}

func (d *crashDisk) Remove(name string) error {
	if d.fails() {
		return d.err
	}
	if d.names[name] == nil {
		return fs.ErrNotExist
	}
	delete(d.names, name)
	return nil
}

func (d *crashDisk) ReadDir(dir string) ([]string, error) {
	var names []string
	for n := range d.names {
		if filepath.Dir(n) == dir {
			names = append(names, filepath.Base(n))
		}
	}
	slices.Sort(names)
	return names, nil
}

func (d *crashDisk) SyncDir(string) error {
	if d.fails() {
		return d.err
	}
	d.durable = map[string]*inode{}
	for name, n := range d.names {
		d.durable[name] = n
	}
	return nil
}

// Wherever a disk fails or a machine stops, once or for good: what the manifest
// has afterwards is whole, and what was published is still there.
func TestADirectorySurvivesCrashes(t *testing.T) {
	ctx := context.Background()
	for _, stays := range []bool{false, true} {
		steps := 0
		for over := false; !over; {
			steps++
			d := newDisk(uint64(steps))
			d.fail, d.stays = steps, stays
			published := uint64(0)
			err := d.publish(ctx, 4, &published)
			if err != nil && !errors.Is(err, errDisk) {
				t.Fatalf("step %d: %v", steps, err)
			}
			over = d.step < steps
			d.crash()
			check(t, d, steps, published)
			// The next process goes on.
			if err := d.publish(ctx, published+2, &published); err != nil {
				t.Fatalf("step %d, after the crash: %v", steps, err)
			}
			d.crash()
			check(t, d, steps, published)
		}
		if steps < 50 {
			t.Errorf("only %d steps", steps)
		}
	}
}

// publish publishes snapshots up to a sequence.
func (d *crashDisk) publish(ctx context.Context, to uint64, published *uint64) error {
	s, err := OpenDir("/snap", "s", d)
	if err != nil {
		return err
	}
	fence, err := Claim(ctx, s, "w", nil)
	for seq := *published + 1; err == nil && seq <= to; seq++ {
		name := Name(seq, fence)
		if err = s.Put(ctx, name, func(w io.Writer) error { _, err := w.Write(content(seq, 500)); return err }); err != nil {
			break
		}
		if _, err = Publish(ctx, s, Entry{Name: name, Seq: seq, Fence: fence}, 2); err != nil {
			break
		}
		*published = seq
		err = Sweep(ctx, s, fence)
	}
	return err
}

// check looks at what is there after a crash.
func check(t *testing.T, d *crashDisk, fail int, published uint64) {
	t.Helper()
	ctx := context.Background()
	s, err := OpenDir("/snap", "s", d)
	if err != nil {
		t.Fatal(err)
	}
	m, _, err := s.Manifest(ctx)
	if err != nil {
		t.Fatalf("step %d: %v", fail, err)
	}
	if newest := uint64(0); published > 0 {
		for _, e := range m.Snapshots {
			newest = max(newest, e.Seq)
		}
		if newest < published {
			t.Fatalf("step %d: snapshot %d was published, the manifest has %+v", fail, published, m)
		}
	}
	for _, e := range m.Snapshots {
		data, err := get(ctx, s, e.Name)
		if err != nil || !bytes.Equal(data, content(e.Seq, 500)) {
			t.Fatalf("step %d: snapshot %s of the manifest is not whole: %d bytes, %v", fail, e.Name, len(data), err)
		}
	}
}

// late is a file system on which others come first, just before a link is made.
type late struct {
	OS
	before func()
}

func (l *late) Link(from, to string) error {
	if f := l.before; f != nil {
		l.before = nil
		f()
	}
	return l.OS.Link(from, to)
}

// The name of a manifest that others have removed since is no free name.
func TestALateClaimDoesNotTakeARemovedNumber(t *testing.T) {
	for first := range 3 { // claims before the late one reads the manifest
		ctx, root := deadline(t), t.TempDir()
		others, err := OpenDir(root, "s", nil)
		if err != nil {
			t.Fatal(err)
		}
		claim := func(s Store, want uint64) {
			t.Helper()
			if fence, err := Claim(ctx, s, "replica", nil); err != nil || fence != want {
				t.Errorf("fencing number %d, %v, want %d", fence, err, want)
			}
		}
		n := uint64(first)
		for i := range n {
			claim(others, i+1)
		}
		fsys := &late{before: func() {
			for i := range uint64(3) {
				claim(others, n+i+1)
			}
		}}
		slow, err := OpenDir(root, "s", fsys)
		if err != nil {
			t.Fatal(err)
		}
		claim(slow, n+4)
		claim(others, n+5)
	}
}
