package e2e

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An engine that reads none of a long body sees that the client has gone.
func TestWhoLeavesIsGoneForAnEngineThatReadsNothing(t *testing.T) {
	asked, over := make(chan struct{}), make(chan struct{})
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path == "/tokenize" {
			return
		}
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close() //nolint:errcheck // nothing is written
		raw, err := c.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Error(err)
			return
		}
		close(asked)
		for n := 0; n <= 0; { // a signal ends a poll, too
			_ = raw.Control(func(fd uintptr) {
				fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
				n, _ = unix.Poll(fds[:], 10)
			})
			select {
			case <-t.Context().Done():
				return
			default:
			}
		}
		close(over)
	}))
	t.Cleanup(h.Close)
	_, url := startRouter(t, t.TempDir(), "--nats", "none", "--kv-events=false", "--model", "m", "--engines", h.URL)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	body := `{"model":"m","prompt":"` + strings.Repeat("word ", 4<<20) + `"}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { // ends with ctx
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			err = errors.Join(errors.New(resp.Status), resp.Body.Close())
		}
		ended <- err
	}()
	wait := func(what string, when chan struct{}) {
		select {
		case <-when:
		case <-time.After(time.Minute):
			t.Fatalf("the engine was not %s", what)
		}
	}
	wait("asked", asked)
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	wait("told that the client is gone", over)
}
