package downstream

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// A connection that is idle keeps nothing of a request's or an answer's thousands of
// headers: clients may have thousands of connections.
func TestIdleConnectionsAreSmall(t *testing.T) {
	const clients, most = 50, 64 << 10
	l := newLab(t, func(w http.ResponseWriter, r *http.Request) {
		for name := range r.Header {
			w.Header()[name] = []string{"x"}
		}
	}, func(c *Config) { c.MaxHeader = most })
	var long strings.Builder
	long.WriteString("GET / HTTP/1.1\r\nHost: x\r\n")
	for i := 0; long.Len() < most-20; i++ {
		fmt.Fprintf(&long, "X%d:\r\n", i)
	}
	long.WriteString("\r\n")
	before := heap()
	for range clients {
		l.dial(long.String()).hear(http.MethodGet)
	}
	if each := (heap() - before) / clients; each > inSize/2 {
		t.Errorf("an idle connection holds %d bytes", each)
	}
	runtime.KeepAlive(l)
}

// A head that arrives slowly, or never, takes no more than there is of it, by much.
func TestConnectionsWithHalfAHeadAreSmall(t *testing.T) {
	const clients = 50
	l := newLab(t, func(http.ResponseWriter, *http.Request) {}, nil)
	l.dial("GET / HTTP/1.1\r\nHost: x\r\n\r\n").hear(http.MethodGet)
	before := heap()
	var all []*talk
	for range clients {
		k := l.dial("GET / HTTP/1.1\r\nHost: x\r\n")
		k.in, all = nil, append(all, k)
	}
	waittest.For(t, "small connections", func() bool { return (heap()-before)/clients < inSize/2 })
	for _, k := range all { // and goes on with it
		k.in = bufio.NewReader(k)
		k.say("\r\n")
		if resp, _ := k.hear(http.MethodGet); resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
	}
}

// While a request is answered nothing is read, and no room is kept for that.
func TestConnectionsThatAnswerAreSmall(t *testing.T) {
	const clients = 50
	begun, end := make(chan bool, clients), make(chan bool)
	l := newLab(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		begun <- true
		<-end
	}, nil)
	defer close(end)
	before := heap()
	for range clients {
		l.dial("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
		<-begun
	}
	if each := (heap() - before) / clients; each > outSize+inSize/2 {
		t.Errorf("a connection that answers holds %d bytes", each)
	}
	runtime.KeepAlive(l)
}

// heap returns how many bytes are in use.
func heap() int64 {
	var m runtime.MemStats
	for range 2 { // pools let go at the second
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
