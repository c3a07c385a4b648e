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

// What clients show who they are by is known by its name; what else engines get is none of it.
func TestCredentialsByName(t *testing.T) {
	for name, want := range map[string]bool{
		"Authorization": true, "X-Api-Key": true, "Api-Key": true, "Cookie": true, "X-Goog-Api-Key": true, "Ocp-Apim-Subscription-Key": true, "Proxy-Authorization": true,
		"X-Amz-Security-Token": true, "X-Auth-Token": true, "Private-Token": true, "X-Amzn-Oidc-Data": true, "X-Forwarded-Access-Token": true, "X-Forwarded-Client-Cert": true,
		"X_api_key": true, "Apikey": true, "Cf-Access-Jwt-Assertion": true, "X-Ms-Client-Principal": true, "X-Hub-Signature-256": true, "Key": true, "X-Password": true, "AUTH": true, "Dpop": true, "X-Bearer": true, "X-Passcode": true, "X-Db-Pwd": true,
		"Content-Type": false, "Accept": false, "X-Request-Id": false, "Traceparent": false, "Tracestate": false, "Anthropic-Version": false, "Anthropic-Beta": false, "Openai-Organization": false, //nolint:misspell // the header's name
		"X-Stainless-Lang": false, "X-Session-Id": false, "X-Claude-Code-Session-Id": false, "Idempotency-Key": false, "Ke": false, "Y": false, "X-Vendor-Key": false, "X-Data-Parallel-Rank": false,
	} {
		if got := credential(name, []string{"X-Vendor-Key"}); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
