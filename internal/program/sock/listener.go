package sock

import (
	"errors"
	"net"
)

// ErrSpoke says that the other side has said something, or ended, before it was asked anything.
var ErrSpoke = errors.New("the other side of the connection speaks unasked, or has ended it")

// Listener is a listener whose connections are those of a server which reads them by a buffer
// of at most 8 KiB, and sets deadlines for each request.
type Listener struct{ net.Listener }

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return forServer(Wrap(c)), nil
}
