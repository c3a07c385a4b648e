package loadsync

import (
	"bufio"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/route"
)

// leaving is a server that ends, once it is told to, when it is next asked whether it is there.
func leaving(t *testing.T) (url string, leave *atomic.Bool) {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	leave = new(atomic.Bool)
	go func() { // ends with the listener or the connection
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close() //nolint:errcheck // the client sees it
		if _, err := c.Write([]byte(`INFO {"server_id":"s","version":"2.12.0","proto":1,"max_payload":1048576}` + "\r\n")); err != nil {
			return
		}
		for lines := bufio.NewScanner(c); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "PING") {
				if leave.Load() {
					_ = ln.Close()
					return
				}
				if _, err := c.Write([]byte("PONG\r\n")); err != nil {
					return
				}
			}
		}
	}()
	return "nats://" + ln.Addr().String(), leave
}

// Who ends as the server does has nothing to complain of.
func TestTheServerLeavesMeanwhile(t *testing.T) {
	for range 3 { // which of the two the client notices first differs
		url, leave := leaving(t)
		nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.Timeout(waittest.Patience))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		r, err := route.New(route.Config{BlockSize: 16, ID: 1, Settings: route.DefaultSettings()})
		if err != nil {
			t.Fatal(err)
		}
		l, err := Open(Config{Conn: nc, Namespace: "ns", Space: space, ID: 1, Router: r, Heartbeat: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		leave.Store(true)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
