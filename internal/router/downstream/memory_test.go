package downstream

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
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
	if each := (heap() - before) / clients; each > 4*inSize {
		t.Errorf("an idle connection holds %d bytes", each)
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
