//go:build !unix

package broker

import "errors"

// fileLock has no implementation here.
type fileLock struct{}

func tryLock(string) (*fileLock, error) {
	return nil, errors.New("an embedded server needs a Unix file lock: run a NATS server and give its nats:// address")
}

func (*fileLock) release() error { return nil }
