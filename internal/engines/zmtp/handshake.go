package zmtp

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"time"
)

const greetingSize = 64

// greeting announces version 3.0 and the NULL mechanism: 10 bytes of
// signature, 2 of version, 20 of mechanism, 1 as-server, 31 of filler.
func greeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[9], g[10] = 0xff, 0x7f, 3
	copy(g[12:], "NULL")
	return g
}

// handshake greets and exchanges READY commands: ZMTP 3.0, RFC 23.
func (c *Conn) handshake(t Type) error {
	if err := c.net.SetDeadline(time.Now().Add(c.opts.Handshake)); err != nil {
		return err
	}
	if _, err := c.net.Write(greeting()); err != nil {
		return err
	}
	if err := c.readGreeting(); err != nil {
		return err
	}
	if err := c.writeCommand("READY", appendProperty(nil, "Socket-Type", string(t))); err != nil {
		return err
	}
	if err := c.readReady(t); err != nil {
		return err
	}
	return c.net.SetDeadline(time.Time{})
}

func (c *Conn) readGreeting() error {
	var g [greetingSize]byte
	// The first bytes alone tell who does not speak the protocol and would
	// never send the others.
	if _, err := io.ReadFull(c.r, g[:1]); err != nil {
		return unexpected(err)
	}
	if g[0] != 0xff {
		return fmt.Errorf("%w: the greeting begins with %#x", ErrProtocol, g[0])
	}
	if _, err := io.ReadFull(c.r, g[1:11]); err != nil {
		return unexpected(err)
	}
	if g[9]&1 == 0 {
		return fmt.Errorf("%w: the greeting's signature is %x", ErrProtocol, g[:10])
	}
	if g[10] < 3 {
		return fmt.Errorf("%w: the peer speaks ZMTP %d", ErrProtocol, g[10])
	}
	if _, err := io.ReadFull(c.r, g[11:]); err != nil {
		return unexpected(err)
	}
	if mechanism := strings.TrimRight(string(g[12:32]), "\x00"); mechanism != "NULL" {
		return fmt.Errorf("%w: the peer wants the mechanism %q", ErrProtocol, mechanism)
	}
	return nil
}

func (c *Conn) readReady(t Type) error {
	flags, size, err := c.header(true)
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 || size > maxCommand {
		return fmt.Errorf("%w: want a READY, have a frame of %d bytes with flags %#x", ErrProtocol, size, flags)
	}
	name, body, err := c.readCommand(size)
	switch {
	case err != nil:
		return err
	case name == "ERROR":
		return fmt.Errorf("%w: the peer says %q", ErrProtocol, body)
	case name != "READY":
		return fmt.Errorf("%w: want a READY, have another command", ErrProtocol)
	}
	peer, err := property(body, "Socket-Type")
	if err != nil {
		return err
	}
	if !fits(t, peer) {
		return fmt.Errorf("%w: the peer is a %q, which a %s cannot talk to; is it the right port?", ErrProtocol, peer, t)
	}
	return nil
}

// fits reports whether a socket of type t may talk to a peer of type p.
func fits(t Type, p string) bool {
	switch t {
	case Sub:
		return p == "PUB" || p == "XPUB"
	case Pub:
		return p == "SUB" || p == "XSUB"
	case Dealer:
		return p == "ROUTER" || p == "DEALER" || p == "REP"
	case Router:
		return p == "DEALER" || p == "REQ" || p == "ROUTER"
	}
	return false
}

func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

// property returns a READY's property. Names do not distinguish case.
func property(b []byte, name string) (string, error) {
	for len(b) > 0 {
		n := 1 + int(b[0])
		if len(b) < n+4 {
			break
		}
		v := uint64(binary.BigEndian.Uint32(b[n:]))
		if v > uint64(len(b)-n-4) {
			break
		}
		if strings.EqualFold(string(b[1:n]), name) {
			return string(b[n+4 : n+4+int(v)]), nil
		}
		b = b[n+4+int(v):]
	}
	return "", fmt.Errorf("%w: a READY that names no %s", ErrProtocol, name)
}
