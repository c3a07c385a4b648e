//go:build unix

package sidecar

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// lock takes the file for this process until it is closed. The kernel drops the
// lock with the process, so that a killed one leaves none behind.
func lock(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
		return f, nil
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errors.New("another kvpublisher publishes for the same rank of the same worker: stop it, or give this one another --worker or --state-dir")
	}
	return nil, errors.Join(fmt.Errorf("--state-dir: %s: %w", path, err), f.Close())
}
