package pools

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// TestKeysThatAreTooLong: one that another user of the store has made keeps nobody from the others,
// and takes no time of the square of its length, in a list or in an event.
func TestKeysThatAreTooLong(t *testing.T) {
	s, x := newStore(t), &index{has: map[uint64]bool{}}
	for _, n := range []int{maxKey - 1, maxKey, maxKey + 1, 3 * maxKey} {
		s.all[strings.Repeat("_", n-3)+"__k"] = true
	}
	s.say(true, false, 1, 0, 1)
	f := follow(t, s, x)
	x.is(t, f, "listed", true, 1)
	s.heard()
	s.pub.Publish(mptest.Encode([]any{uint64(1764000000123), []any{
		mptest.Map{"event_type", "stored", "object_key", strings.Repeat("_", 60_000) + "__k"},
		mptest.Map{"event_type", "stored", "object_key", "d@m@tp_rank:0" + strings.Repeat("x", maxKey) + "@group:0@" + strings.Repeat("0", 64)},
	}, 0}))
	s.say(true, true, 2, 0, 1)
	x.is(t, f, "said", true, 1, 2)
	if left := f.Status().Left; left.Foreign < 6 || left.Parts > 0 {
		t.Errorf("%+v", left)
	}
}

// TestWhatWaitsForAListIsBounded: beyond that the list is of no use, and another one is read.
func TestWhatWaitsForAListIsBounded(t *testing.T) {
	f := New(Config{MaxWaiting: 10 * (1000 + messageRoom)}, "p", &event.PoolSource{Parts: 1}, &index{})
	f.listing, f.heard = true, true
	for n := range uint64(12) {
		if err := f.take(t.Context(), message{n + 1, make([]byte, 1000)}); err != nil {
			t.Fatal(err)
		}
		if over := n >= 10; f.over != over || over && f.waiting != nil || !over && len(f.waiting) != int(n)+1 {
			t.Errorf("after %d messages %d wait, the list is of no use: %v", n+1, len(f.waiting), f.over)
		}
	}
	if st := f.Status(); !strings.Contains(st.Cause, "bytes came") || st.Gaps > 0 {
		t.Errorf("%+v", st)
	}
}

// TestListsAreRare: what a stream lacks again and again is listed no oftener than at a rate.
func TestListsAreRare(t *testing.T) {
	s, x := newStore(t), &index{has: map[uint64]bool{}}
	f := follow(t, s, x, func(c *Config) { c.RetryMin, c.RetryMax = time.Hour, time.Hour })
	x.is(t, f, "listed", true)
	for hash := range uint64(20) {
		s.say(true, true, hash, 0, 1)
	}
	waittest.Until(t, func() error {
		if st := f.Status(); st.Blocks != 20 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen != 1 {
		t.Errorf("%d lists", s.seen)
	}
}

// TestWhoNamesAPoolIsBack: what others said of it meanwhile is not what the store has, so its keys
// are listed again before lookups see it.
func TestWhoNamesAPoolIsBack(t *testing.T) {
	s, x := newStore(t), &index{has: map[uint64]bool{}}
	s.say(true, false, 1, 0, 1)
	f := follow(t, s, x)
	x.is(t, f, "listed", true, 1)
	x.mu.Lock()
	x.readable, x.has[9] = false, true
	x.mu.Unlock()
	x.is(t, f, "named again", true, 1)
}

// TestConnectionsEndWithTheirSessions: of one that speaks otherwise than a store's master.
func TestConnectionsEndWithTheirSessions(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	keys := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(keys.Close)
	f := New(Config{RetryMin: time.Hour, RetryMax: time.Hour}, "p",
		&event.PoolSource{Events: "tcp://" + l.Addr().String(), Keys: keys.URL, Parts: 1}, &index{has: map[uint64]bool{}})
	runFollower(t, f)
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c, err := zmtp.Handshake(nc, zmtp.Pub, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.WriteMessage([]byte("two"), []byte("frames")); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(waittest.Patience)); err != nil {
		t.Fatal(err)
	}
	var m zmtp.Message
	for err == nil {
		err = c.ReadMessage(&m) // the subscription first
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is still there")
	}
	_ = c.Close()
}
