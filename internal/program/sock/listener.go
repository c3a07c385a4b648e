package sock

import (
	"errors"
	"net"
)

// ErrSpoke says that the other side has said something, or ended, before it was asked anything.
var ErrSpoke = errors.New("the other side of the connection speaks unasked, or has ended it")

// Listener is a listener whose connections are as Wrap returns them.
type Listener struct{ net.Listener }

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Wrap(c), nil
}
