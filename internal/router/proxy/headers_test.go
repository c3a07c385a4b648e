package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// What Connection names belongs to the connection, however it is written.
func TestHeadersOfTheConnection(t *testing.T) {
	from := http.Header{"Connection": {"close, X-One", "x-two ,\tX-THREE"}, "X-One": {"1"}, "X-Two": {"2"}, "X-Three": {"3"}, "X-Four": {"4"}, "Te": {"trailers"}, "X-Kvatlas-Worker": {"1"}}
	to := http.Header{}
	if copyHeaders(to, from); len(to) != 1 || to.Get("X-Four") != "4" {
		t.Errorf("%v go on", to)
	}
}

// A head of 64 KiB takes no time to copy, whatever it names: each engine that is asked
// costs it again. What it may take goes by what reading the names alone takes: to look at all of them
// for each header takes more than a hundred times that.
func TestHeadersTakeNoTime(t *testing.T) {
	var names []string
	from := http.Header{}
	for i := range 6000 {
		names = append(names, fmt.Sprintf("a%d", i))
	}
	for i := range 1500 {
		from[fmt.Sprintf("B%d", i)] = []string{"x"}
	}
	from["Connection"] = []string{strings.Join(names, ",")}
	least, reads := time.Hour, time.Hour
	for range 5 {
		begun := time.Now()
		if named := namedBy(from["Connection"]); len(named) != len(names) {
			t.Fatal(len(named))
		}
		reads = min(reads, time.Since(begun))
		begun = time.Now()
		to := http.Header{}
		if copyHeaders(to, from); len(to) != 1500 {
			t.Fatal(len(to))
		}
		least = min(least, time.Since(begun))
	}
	if least > 40*reads {
		t.Errorf("it takes %v, and to read the names %v", least, reads)
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
