package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
)

// What one request after another is made in carries nothing from one to the next, and its end
// ends the one that is under way, and no connection that it has given back.
func TestExchange(t *testing.T) {
	var conns atomic.Int64
	gone := make(chan struct{}, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/wait" {
			<-r.Context().Done()
			gone <- struct{}{}
			return
		}
		w.Header()["N"+r.Header.Get("Odd")] = []string{strconv.Itoa(len(r.Header["Odd"]))}
		w.WriteHeader(200 + len(body)%2)
		_, _ = w.Write(body)
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, Config{})
	send := func(x *Exchange, path, body, odd string) (*http.Response, error) {
		u := *base
		u.Path = path
		req := NewRequest(x, http.MethodPost, u, Payload{Pieces: [][]byte{[]byte(body)}})
		if odd != "" {
			req.Header.Set("Odd", odd)
		}
		return c.RoundTrip(req)
	}
	check := func(x *Exchange, body, odd string) {
		t.Helper()
		resp, err := send(x, "/", body, odd)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil || string(text) != body || resp.StatusCode != 200+len(body)%2 || resp.ContentLength != int64(len(body)) {
			t.Errorf("%q: %d, %q, %d, %v", body, resp.StatusCode, text, resp.ContentLength, err)
		}
		if got := resp.Header["N"+odd]; len(got) != 1 || got[0] != strconv.Itoa(min(len(odd), 1)) || len(resp.Header) > 4 {
			t.Errorf("%q: %v", body, resp.Header)
		}
		_ = resp.Body.Close()
	}
	x := NewExchange(t.Context())
	defer x.Cancel()
	for _, s := range [][2]string{{"the first", "a"}, {"2", ""}, {"", "b"}, {"the last!", ""}} {
		check(x, s[0], s[1])
	}
	x.Cancel()
	if resp, err := send(x, "/", "", ""); !errors.Is(err, context.Canceled) { //nolint:bodyclose // there is none
		t.Errorf("at the end: %v, %v", resp, err)
	}
	ctx, leave := context.WithCancel(t.Context())
	x = NewExchange(ctx)
	defer x.Cancel()
	check(x, "once more", "c")
	failed := make(chan error)
	go func() { // ends with ctx
		_, err := send(x, "/wait", "x", "") //nolint:bodyclose // there is none
		failed <- err
	}()
	leave()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := c.count(); n > 1 || conns.Load() > 3 {
		t.Errorf("%d idle, of %d connections", n, conns.Load())
	}
}
