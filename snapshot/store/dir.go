package store

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// Dir keeps snapshots as files of a directory. The manifest is the file
// manifest-N with the highest N; the next one gets its name by a link, which
// only one process can make.
type Dir struct {
	stream, dir string
	fs          FS
}

const (
	manifestPrefix = "manifest-"
	tempPrefix     = "unfinished-"
)

// OpenDir returns the store of a stream in a subdirectory of dir, made if
// absent. fsys nil is the operating system's.
func OpenDir(dir, stream string, fsys FS) (*Dir, error) {
	if fsys == nil {
		fsys = OS{}
	}
	if stream == "" || stream == "." || stream == ".." || filepath.Base(stream) != stream {
		return nil, fmt.Errorf("snapshot directory: %q is no name of a stream", stream)
	}
	d := &Dir{stream, filepath.Join(dir, stream), fsys}
	if err := fsys.MkdirAll(d.dir); err != nil {
		return nil, fmt.Errorf("snapshot directory: %w", err)
	}
	if err := fsys.SyncDir(dir); err != nil {
		return nil, fmt.Errorf("snapshot directory: %w", err)
	}
	return d, nil
}

// CheckDir returns an error if no snapshot can be written into dir, which it makes if absent.
func CheckDir(dir string) error {
	d := &Dir{dir: dir, fs: OS{}}
	err := d.fs.MkdirAll(dir)
	if err == nil {
		var temp string
		if temp, err = d.write(func(io.Writer) error { return nil }); err == nil {
			err = d.remove(temp)
		}
	}
	if err != nil {
		return fmt.Errorf("snapshot directory: %w", err)
	}
	return nil
}

// String implements Store.
func (d *Dir) String() string { return d.dir }

func (d *Dir) path(name string) string { return filepath.Join(d.dir, name) }

// write writes a file under a temporary name, synced, and returns that.
func (d *Dir) write(write func(w io.Writer) error) (temp string, err error) {
	temp = d.path(tempPrefix + rand.Text())
	f, err := d.fs.Create(temp)
	if err != nil {
		return "", fmt.Errorf("snapshot: %w", err)
	}
	buf := bufio.NewWriterSize(f, 256<<10)
	if err = write(buf); err == nil {
		err = buf.Flush()
	}
	if err == nil {
		// After a failed sync the pages count as clean although they are not
		// on the disk: there is no second try.
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(fmt.Errorf("snapshot: writing %s: %w", temp, err), d.remove(temp))
	}
	return temp, nil
}

// remove removes a file that may be gone.
func (d *Dir) remove(path string) error {
	if err := d.fs.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// Put implements Store.
func (d *Dir) Put(_ context.Context, name string, write func(w io.Writer) error) error {
	if err := CheckName(name); err != nil {
		return err
	}
	temp, err := d.write(write)
	if err != nil {
		return err
	}
	if err := d.fs.Rename(temp, d.path(name)); err != nil {
		return errors.Join(fmt.Errorf("snapshot: %w", err), d.remove(temp))
	}
	return d.sync()
}

func (d *Dir) sync() error {
	if err := d.fs.SyncDir(d.dir); err != nil {
		return fmt.Errorf("snapshot: syncing %s: %w", d.dir, err)
	}
	return nil
}

// Open implements Store.
func (d *Dir) Open(_ context.Context, name string) (File, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	f, err := d.fs.Open(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, d.path(name))
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return f, nil
}

// Delete implements Store.
func (d *Dir) Delete(_ context.Context, name string) error {
	if !isName(name) && !strings.HasPrefix(name, tempPrefix) {
		return fmt.Errorf("%q is no name of a snapshot", name)
	}
	if err := d.remove(d.path(name)); err != nil {
		return err
	}
	return d.sync()
}

// Names implements Store.
func (d *Dir) Names(context.Context) ([]string, error) {
	all, err := d.fs.ReadDir(d.dir)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	var names []string
	for _, n := range all {
		if isName(n) || strings.HasPrefix(n, tempPrefix) {
			names = append(names, n)
		}
	}
	return names, nil
}

func manifestName(rev Revision) string { return fmt.Sprintf("%s%020d", manifestPrefix, rev) }

// manifests returns the revisions that there are, oldest first.
func (d *Dir) manifests() ([]Revision, error) {
	all, err := d.fs.ReadDir(d.dir)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	var revs []Revision
	for _, n := range all {
		var rev Revision
		if _, err := fmt.Sscanf(n, manifestPrefix+"%d", &rev); err == nil && n == manifestName(rev) {
			revs = append(revs, rev)
		}
	}
	return revs, nil
}

// Manifest implements Store.
func (d *Dir) Manifest(context.Context) (Manifest, Revision, error) {
	for range 100 {
		revs, err := d.manifests()
		if err != nil || len(revs) == 0 {
			return Manifest{}, 0, err
		}
		last := revs[len(revs)-1]
		data, err := d.fs.ReadFile(d.path(manifestName(last)))
		if errors.Is(err, fs.ErrNotExist) {
			continue // replaced meanwhile
		}
		if err != nil {
			return Manifest{}, 0, fmt.Errorf("snapshot: %w", err)
		}
		m, err := decodeManifest(data, d.stream)
		return m, last, err
	}
	return Manifest{}, 0, fmt.Errorf("%w: it changes all the time", ErrConflict)
}

// newest returns ErrConflict if the manifest that has just replaced of is not
// the newest. Its name was free, but maybe because others had come further and
// had removed the one of that name: they remove of before it, and keep theirs.
func (d *Dir) newest(of Revision) error {
	revs, err := d.manifests()
	if err != nil {
		return err
	}
	if n := len(revs); n == 0 || revs[n-1] != of+1 || of != 0 && !slices.Contains(revs, of) {
		return ErrConflict
	}
	return nil
}

// keepManifests is how many old manifests stay, for people.
const keepManifests = 2

// Replace implements Store. If others replace it again at once, it may report a
// conflict although it counted for a moment.
func (d *Dir) Replace(_ context.Context, m Manifest, of Revision) error {
	revs, err := d.manifests()
	if err != nil {
		return err
	}
	if n := len(revs); n > 0 && revs[n-1] != of || n == 0 && of != 0 {
		return ErrConflict
	}
	data, err := encodeManifest(m, d.stream)
	if err != nil {
		return err
	}
	temp, err := d.write(func(w io.Writer) error { _, err := w.Write(data); return err })
	if err != nil {
		return err
	}
	err = d.fs.Link(temp, d.path(manifestName(of+1)))
	if errors.Is(err, fs.ErrExist) {
		err = ErrConflict
	}
	if err == nil {
		err = d.newest(of)
	}
	if err == nil {
		err = d.sync()
	}
	if err = errors.Join(err, d.remove(temp)); err != nil {
		return fmt.Errorf("snapshot manifest: %w", err)
	}
	for _, rev := range revs[:max(0, len(revs)-keepManifests+1)] {
		if err := d.remove(d.path(manifestName(rev))); err != nil {
			return err
		}
	}
	return nil
}
