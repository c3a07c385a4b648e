package store

import (
	"io"
	"os"
	"slices"

	"github.com/kvatlas/kvatlas/internal/program/disk"
)

// FS is what a Dir needs of a file system. OS is the real one.
type FS interface {
	MkdirAll(dir string) error
	// Create makes a file that is not there yet.
	Create(name string) (WriteFile, error)
	Open(name string) (File, error)
	ReadFile(name string) ([]byte, error)
	// Rename replaces to.
	Rename(from, to string) error
	// Link gives the file another name; it fails with fs.ErrExist if that is
	// taken.
	Link(from, to string) error
	Remove(name string) error
	// ReadDir returns the names in a directory, sorted.
	ReadDir(dir string) ([]string, error)
	// SyncDir makes the names of a directory outlive a crash.
	SyncDir(dir string) error
}

// WriteFile is a file that is being written.
type WriteFile interface {
	io.Writer
	Sync() error
	Close() error
}

// OS is the operating system's file system. Files are their owner's alone.
type OS struct{}

// MkdirAll implements FS.
func (OS) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o700) }

// Create implements FS.
func (OS) Create(name string) (WriteFile, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// Open implements FS.
func (OS) Open(name string) (File, error) { return os.Open(name) }

// ReadFile implements FS.
func (OS) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }

// Rename implements FS.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Link implements FS.
func (OS) Link(from, to string) error { return os.Link(from, to) }

// Remove implements FS.
func (OS) Remove(name string) error { return os.Remove(name) }

// ReadDir implements FS.
func (OS) ReadDir(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names, err
}

// SyncDir implements FS.
func (OS) SyncDir(dir string) error { return disk.SyncDir(dir) }
