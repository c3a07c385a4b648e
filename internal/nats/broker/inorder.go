package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kvatlas/kvatlas/internal/program/disk"
)

// begin marks the data directory as in use. After a run that did not end in order
// (a crash, no power, a start that never came to its end) it has the server check
// the sum of every message, by taking away the files in which it noted what its
// messages are. With them the server believes its messages unread: one flipped bit
// in a message's number then makes it (2.15.2) enter each number up to that one,
// until it has eaten the machine's memory, at that start and at every later one. Also
// where nothing is damaged: of seven servers killed in the middle of writing, three were
// not up again within 30 s with these files, and all within 70 ms without.
// begin reports whether that is so.
func begin(dir string) (checks bool, err error) {
	running := filepath.Join(dir, runningFile)
	switch _, err := os.Stat(running); {
	case err == nil:
		if err := forgetStates(filepath.Join(dir, "jetstream")); err != nil {
			return false, fmt.Errorf("broker: check of %s after a run that did not end in order: %w", dir, err)
		}
		checks = true
	case !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("broker: %w", err)
	}
	// On the disk before the first message is: power may go at any time.
	if err := errors.Join(os.WriteFile(running, nil, 0o600), disk.SyncDir(dir)); err != nil {
		return false, fmt.Errorf("broker: data directory must be writable: %w", err)
	}
	return checks, nil
}

// end marks the data directory as left in order.
func end(dir string) error {
	if err := os.Remove(filepath.Join(dir, runningFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("broker: %w", err)
	}
	return nil
}

// forgetStates removes what the server below dir noted of its messages, which it
// makes anew from them.
func forgetStates(dir string) error {
	dir, err := filepath.EvalSymlinks(dir) // it may be on a disk of its own
	if errors.Is(err, fs.ErrNotExist) {    // nothing was ever stored
		return nil
	}
	if err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "index.db" && filepath.Base(filepath.Dir(path)) == "msgs" {
			return os.Remove(path) //nolint:gosec // nobody else writes there
		}
		return err
	})
}
