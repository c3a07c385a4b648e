package sock

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// A request that is larger than a server's buffer is read at once.
func TestAServerReadsAhead(t *testing.T) {
	a, b := pair(t)
	c := forServer(b)
	waits := func() (n int) {
		_ = b.(*Conn).raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
		return n
	}
	if _, err := a.Write(make([]byte, 12<<10)); err != nil {
		t.Fatal(err)
	}
	waittest.For(t, "all of it", func() bool { return waits() == 12<<10 })
	p := make([]byte, 8<<10)
	if n, err := c.Read(p); n != len(p) || err != nil {
		t.Fatal(n, err)
	}
	if n := waits(); n > 0 {
		t.Errorf("%d bytes wait for another call", n)
	}
	if n, err := c.Read(p); n != 4<<10 || err != nil {
		t.Error(n, err)
	}
	// What is a large body's is read to where it stays.
	if _, err := a.Write(make([]byte, 40<<10)); err != nil {
		t.Fatal(err)
	}
	waittest.For(t, "the body", func() bool { return waits() == 40<<10 })
	if n, err := c.Read(make([]byte, 20<<10)); n != 20<<10 || err != nil || waits() != 20<<10 {
		t.Errorf("%d bytes, %v, and %d wait", n, err, waits())
	}
}
