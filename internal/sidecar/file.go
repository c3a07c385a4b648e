package sidecar

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kvatlas/kvatlas/internal/program/disk"
)

// store keeps one stream's state. Its user is one goroutine at a time.
type store interface {
	// load returns what was saved last; nil if nothing was.
	load() ([]byte, error)
	// save replaces it: whenever the machine stops, load returns the old bytes
	// or the new.
	save(b []byte) error
	// remove forgets it.
	remove() error
}

// file is a store in one file. It is written beside, synced and renamed.
type file struct{ path string }

func (f file) load() ([]byte, error) {
	b, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the kept state: %w", err)
	}
	return b, nil
}

func (f file) save(b []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("keeping the state: %w", err)
		}
	}()
	temp := f.path + ".new"
	w, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	if err == nil {
		err = w.Sync()
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return errors.Join(err, os.Remove(temp)) // a full disk needs the room
	}
	if err := os.Rename(temp, f.path); err != nil {
		return err
	}
	return disk.SyncDir(filepath.Dir(f.path))
}

func (f file) remove() error {
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the kept state: %w", err)
	}
	return disk.SyncDir(filepath.Dir(f.path))
}

// nowhere keeps nothing: every start begins anew.
type nowhere struct{}

func (nowhere) load() ([]byte, error) { return nil, nil }
func (nowhere) save([]byte) error     { return nil }
func (nowhere) remove() error         { return nil }
