package console

import (
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// slowly forwards connections to an address, and holds back what comes from it for as long as by says, as a
// slow link with much memory does.
func slowly(t *testing.T, to string, by *atomic.Int64) (address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() { // ends with the listener
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = c.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, c); _ = server.Close() }()
			go hold(c, server, time.Duration(by.Load()), by)
		}
	}()
	return ln.Addr().String()
}

type piece struct {
	came time.Time
	text []byte
}

// hold copies from the server to the client. A connection that begins while there is a delay has none: it is the
// memory of the old one that is full.
func hold(client, server net.Conn, begun time.Duration, by *atomic.Int64) {
	pieces := make(chan piece, 4096)
	go func() {
		defer close(pieces)
		for {
			b := make([]byte, 64<<10)
			n, err := server.Read(b)
			if err != nil {
				return
			}
			pieces <- piece{time.Now(), b[:n]}
		}
	}()
	for p := range pieces {
		if begun == 0 {
			<-time.After(time.Until(p.came.Add(time.Duration(by.Load()))))
		}
		if _, err := client.Write(p.text); err != nil {
			break
		}
	}
	_ = client.Close()
	_ = server.Close()
	for range pieces { // until its reader has ended
	}
}

// late: overviews that come each second, but were made long ago, are not of now; and the page takes another connection.
func late(t *testing.T, f *fleet) {
	var by atomic.Int64
	b := open(t, "http://"+slowly(t, strings.TrimPrefix(f.admin, "http://"), &by))
	b.look(1280, 900, "light")
	b.visit("#/fleet")
	until(t, "a few seconds without delay", after(2*time.Second))
	by.Store(int64(8 * time.Second))
	b.until("that it comes late", `globalThis.kvatlas.state === 'stale' && /What comes from the server is late/.test(document.querySelector('#notice').innerText)`)
	b.picture("late")
	b.until("a connection without", `globalThis.kvatlas.state === 'live' && document.querySelector('#notice').innerText === ''`)
	b.well()
}
