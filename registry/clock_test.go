package registry

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// earlierLink brings what a server says whose clock is an hour behind: the times of messages, and that of a
// stream's description. Both stay as long as they were.
type earlierLink struct {
	net.Conn
	in   *bufio.Reader
	rest []byte
}

const behind = time.Hour

var (
	delivered = regexp.MustCompile(`\.[0-9]{19}\.`) // nanoseconds
	described = regexp.MustCompile(`"ts":"[^"]*"`)
)

func (c *earlierLink) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		line, err := c.in.ReadBytes('\n')
		if err != nil {
			return 0, err
		}
		line = delivered.ReplaceAllFunc(line, func(b []byte) []byte {
			n, _ := strconv.ParseInt(string(b[1:len(b)-1]), 10, 64)
			return fmt.Appendf(nil, ".%d.", n-int64(behind))
		})
		c.rest = described.ReplaceAllFunc(line, func(b []byte) []byte {
			at, err := time.Parse(`"ts":"2006-01-02T15:04:05.999999999Z07:00"`, string(b))
			text := at.Add(-behind).Format(`"ts":"2006-01-02T15:04:05.`)
			if err != nil || len(text) >= len(b) {
				return b
			}
			return append([]byte(text), b[len(text):]...)
		})
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

type earlierDialer struct{}

func (earlierDialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address) //nolint:noctx // a server of this machine
	if err != nil {
		return nil, err
	}
	return &earlierLink{Conn: c, in: bufio.NewReader(c)}, nil
}

// Where the clocks of the server and of who looks at the bucket differ, who lives is shown as that, with when it was
// heard, and is not removed unless that is forced.
func TestAServerWithAnotherClock(t *testing.T) {
	b := startBroker(t, t.TempDir())
	opts := b.Conn().Opts
	opts.Url, opts.InProcessServer, opts.CustomDialer = b.Conn().ConnectedUrl(), nil, earlierDialer{}
	nc, err := opts.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	begun := time.Now()
	a, err := Register(deadline(t), testWorker(1), AnnounceConfig{Conn: b.Conn(), Lease: time.Minute, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Stop)
	bucket, err := OpenBucket(deadline(t), nc, "default", BucketConfig{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := bucket.Read(deadline(t))
	if err != nil || len(c.Workers) != 1 {
		t.Fatalf("%+v, %v", c, err)
	}
	if e := &c.Workers[0]; e.State != Live || e.LastSeen.Before(begun.Add(-behind/2)) {
		t.Errorf("it is %v, heard at %v, registered after %v", e.State, e.LastSeen, begun)
	}
	if err := bucket.Remove(deadline(t), 1, false); !errors.Is(err, ErrAlive) {
		t.Errorf("a worker that announces itself is removed: %v", err)
	}
}
