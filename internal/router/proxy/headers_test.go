package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"unsafe"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// What Connection names belongs to the connection, however it is written.
func TestHeadersOfTheConnection(t *testing.T) {
	from := http.Header{"Connection": {"close, X-One", "x-two ,\tX-THREE"}, "X-One": {"1"}, "X-Two": {"2"}, "X-Three": {"3"}, "X-Four": {"4"}, "Te": {"trailers"}, "X-Kvatlas-Worker": {"1"}}
	to := http.Header{}
	if copyHeaders(to, from); len(to) != 1 || to.Get("X-Four") != "4" {
		t.Errorf("%v go on", to)
	}
}

// A head takes no more to copy than its size, whatever it names: each engine that is asked
// costs it again. This one is so large that to look at all names for each header takes many minutes.
func TestHeadersTakeNoTime(t *testing.T) {
	const headers = 150_000
	var names []string
	from := http.Header{}
	for i := range headers {
		names = append(names, fmt.Sprintf("a%d", i))
		from[fmt.Sprintf("B%d", i)] = []string{"x"}
	}
	from["Connection"] = []string{strings.Join(names, ",")}
	to := http.Header{}
	waittest.Ends(t, "a head is copied", func() { copyHeaders(to, from) })
	if len(to) != headers {
		t.Errorf("%d headers go on", len(to))
	}
}

// The names of requests and of tenants are kept for long, and so is no part of a head,
// which would be kept as a whole.
func TestNamesAreNoPartOfHeads(t *testing.T) {
	head := strings.Repeat("X-A: long\r\n", 5000) + "X-Request-Id: me"
	me := head[len(head)-2:]
	r := &http.Request{Header: http.Header{headerRequest: {me}, headerTenant: {me}}}
	y, no := new(Proxy).payerOf(r, true)
	if no != nil {
		t.Fatal(no)
	}
	for _, kept := range []string{name(r)[0], r.Header.Get(headerRequest), y.name} {
		if kept != "me" || unsafe.StringData(kept) == unsafe.StringData(me) {
			t.Errorf("%q, or its head is kept with it", kept)
		}
	}
}
