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
// costs it again.
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
	least := time.Hour
	for range 5 {
		begun := time.Now()
		to := http.Header{}
		if copyHeaders(to, from); len(to) != 1500 {
			t.Fatal(len(to))
		}
		least = min(least, time.Since(begun))
	}
	if least > 30*time.Millisecond {
		t.Errorf("it takes %v", least)
	}
}

// A request's name is kept for long, and so is no part of its head, which would be kept as
// a whole.
func TestNamesAreNoPartOfHeads(t *testing.T) {
	head := strings.Repeat("X-A: long\r\n", 5000) + "X-Request-Id: me"
	r := &http.Request{Header: http.Header{headerRequest: {head[len(head)-2:]}}}
	id := name(r)
	if id[0] != "me" || r.Header.Get(headerRequest) != "me" {
		t.Errorf("it is called %q", id)
	}
	if unsafe.StringData(id[0]) == unsafe.StringData(head[len(head)-2:]) {
		t.Error("its head is kept with its name")
	}
}
