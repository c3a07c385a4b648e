//go:build unix

package broker

import (
	"errors"
	"os"
	"syscall"
)

// fileLock is an exclusive lock on a file. The kernel drops it with the
// process, so that a killed owner leaves no stale lock behind.
type fileLock struct{ f *os.File }

// tryLock takes the lock, or returns nil if another process (or another
// Broker of this one) has it.
func tryLock(path string) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return &fileLock{f}, nil
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, f.Close()
	}
	return nil, errors.Join(err, f.Close())
}

func (l *fileLock) release() error { return l.f.Close() }
