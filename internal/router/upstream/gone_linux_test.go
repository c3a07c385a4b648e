package upstream

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// An engine that reads the head of a request and nothing of its long body sees that the request
// is over, however much of it the kernel still has to send.
func TestAnEngineThatReadsNoBodySeesTheEnd(t *testing.T) {
	small := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		ctl := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
		if err == nil {
			err = ctl
		}
		return err
	}}
	for _, size := range []int{48 << 10, 16 << 20} { // of this package's own connections, and of http.Transport's
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			ln, err := small.Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close() //nolint:errcheck // it has done its work
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			c, ended := client(t, Config{}), make(chan struct{})
			go func() { // ends with ctx
				defer close(ended)
				if resp, err := ask(ctx, c, http.MethodPost, "http://"+ln.Addr().String(), make([]byte, size)); err == nil {
					_ = resp.Body.Close()
					t.Error("an answer from nowhere")
				}
			}()
			engine, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer engine.Close() //nolint:errcheck // only read
			if _, err := bufio.NewReaderSize(engine, 16).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			raw, err := engine.(*net.TCPConn).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			over := func() (seen bool) {
				_ = raw.Control(func(fd uintptr) {
					fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
					n, err := unix.Poll(fds[:], 0)
					seen = err == nil && n > 0
				})
				return seen
			}
			if over() {
				t.Fatal("it is over before anyone has left")
			}
			leave()
			<-ended
			waittest.Until(t, func() error {
				if !over() {
					return fmt.Errorf("the engine sees no end")
				}
				return nil
			})
		})
	}
}
