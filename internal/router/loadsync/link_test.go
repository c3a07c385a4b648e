package loadsync

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/load"
)

type node struct {
	*route.Router
	broker   *broker.Broker
	link     *Link
	relieved func()
	log      *slog.Logger
}

var space = event.Space{Model: "org/model", BlockSize: 16}

func start(t testing.TB, dir string, id uint64, sp event.Space) *node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	log := slog.New(slog.DiscardHandler)
	b, err := broker.Open(ctx, broker.Config{URL: broker.Embedded, DataDir: dir, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() }) // the server may be gone before its clients
	r, err := route.New(route.Config{BlockSize: 16, ID: id, Settings: route.DefaultSettings()})
	if err != nil {
		t.Fatal(err)
	}
	for w := range uint64(3) {
		if err := r.SetWorker(route.Worker{ID: w}); err != nil {
			t.Fatal(err)
		}
	}
	n := &node{Router: r, broker: b, log: log}
	n.open(t, id, sp)
	return n
}

func (n *node) open(t testing.TB, id uint64, sp event.Space) {
	t.Helper()
	l, err := Open(Config{Conn: n.broker.Conn(), Namespace: "ns", Space: sp, ID: id, Router: n.Router,
		Relieved: n.relieved, Heartbeat: 50 * time.Millisecond, Log: n.log})
	if err != nil {
		t.Fatal(err)
	}
	n.link = l
	t.Cleanup(func() { _ = l.Close() })
}

func (n *node) book(t testing.TB, id string) {
	t.Helper()
	_, err := n.BestWorker(t.Context(), route.Prompt{Tokens: make([]uint32, 64)}, route.Options{RequestID: id})
	if err != nil {
		t.Fatal(err)
	}
}

// sums returns the requests and prompt tokens that a router knows of, per rank.
func (n *node) sums() string {
	s := ""
	for _, l := range n.Loads() {
		s += fmt.Sprintf("%d:%d/%d/%v ", l.Worker, l.Requests, l.PrefillTokens, l.DecodeBlocks)
	}
	return s
}

func agree(t *testing.T, live int, nodes ...*node) {
	t.Helper()
	waittest.Until(t, func() error {
		for _, n := range nodes {
			if got := n.Router.Stats().Live; got != live {
				return fmt.Errorf("a router knows %d bookings, want %d", got, live)
			}
			if got, want := n.sums(), nodes[0].sums(); got != want {
				return fmt.Errorf("loads differ: %s and %s", got, want)
			}
		}
		return nil
	})
}

// Routers over a real server agree: what is booked before they meet, while they
// are together, by one that joins late, and after one leaves.
func TestRoutersAgree(t *testing.T) {
	dir := t.TempDir()
	a := start(t, dir, 1, space)
	for i := range 5 {
		a.book(t, fmt.Sprint("a", i)) // before anybody listens
	}
	b := start(t, dir, 2, space)
	agree(t, 5, a, b)
	for i := range 20 {
		b.book(t, fmt.Sprint("b", i))
		a.book(t, fmt.Sprint("aa", i))
	}
	agree(t, 45, a, b)
	a.MarkPrefillComplete("aa3")
	b.Free("b7")
	c := start(t, dir, 3, space) // asks both
	agree(t, 44, a, b, c)
	other := start(t, dir, 4, event.Space{Model: "other", BlockSize: 16})
	other.book(t, "x")
	agree(t, 1, other)
	agree(t, 44, a, b, c)
	if got := c.link.Stats(); got.Synced != 2 || got.Malformed != 0 {
		t.Errorf("the late router: %+v", got)
	}
	if err := b.link.Close(); err != nil { // leaves: its 19 bookings are forgotten
		t.Fatal(err)
	}
	agree(t, 25, a, c)
	if n := a.link.Dropped() + c.link.Dropped(); n != 0 {
		t.Errorf("%d messages dropped", n)
	}
}

// A router whose connection breaks and comes back is in agreement again.
func TestReconnect(t *testing.T) {
	dir := t.TempDir()
	a, b := start(t, dir, 1, space), start(t, dir, 2, space)
	a.book(t, "before")
	agree(t, 1, a, b)
	if err := b.broker.Conn().ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		a.book(t, fmt.Sprint("a", i))
		b.book(t, fmt.Sprint("b", i))
	}
	agree(t, 101, a, b)
}

// While there is no connection the log does not say with each heartbeat that the others are not told:
// that there is none is said by who keeps it.
func TestWithoutAConnectionNothingIsSaidOfEachMessage(t *testing.T) {
	dir := t.TempDir()
	owner, err := broker.Open(t.Context(), broker.Config{URL: broker.Embedded, DataDir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	n := start(t, dir, 1, space)
	_ = n.link.Close()
	var log bytes.Buffer
	n.log = slog.New(slog.NewTextHandler(&log, nil))
	n.open(t, 1, space)
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	waittest.For(t, "the connection is lost", func() bool { return !n.broker.Conn().IsConnected() })
	_ = n.link.Close() // which tells the others, too
	if log.Len() > 0 {
		t.Error(log.String())
	}
}

// Rubbish on the subject is counted and changes nothing.
func TestRubbish(t *testing.T) {
	a := start(t, t.TempDir(), 1, space)
	if err := a.broker.Conn().Publish(a.link.all, []byte("rubbish")); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, func() error {
		if got := a.link.Stats().Malformed; got != 1 {
			return fmt.Errorf("%d malformed", got)
		}
		return nil
	})
	if _, err := Open(Config{Namespace: "a.b"}); err == nil {
		t.Error("a namespace with a dot is accepted")
	}
	if err := errors.Join(a.link.Close(), a.link.Close()); err != nil {
		t.Error(err)
	}
}

// Who waits at a router is let try when a request that another one placed has its first token,
// or is over: only that makes room there, and nothing of it goes by this router.
func TestOthersRequestsMakeRoom(t *testing.T) {
	dir := t.TempDir()
	var relieved atomic.Int64
	a, b := start(t, dir, 1, space), start(t, dir, 2, space)
	if err := a.link.Close(); err != nil {
		t.Fatal(err)
	}
	a.relieved = func() { relieved.Add(1) }
	a.open(t, 1, space)
	b.book(t, "met")
	agree(t, 1, a, b)
	known := relieved.Load() // with b's bookings
	b.book(t, "x")
	agree(t, 2, a, b)
	if n := relieved.Load(); n != known {
		t.Errorf("a booking made room: told %d times, want %d", n, known)
	}
	for _, change := range []func(string) bool{b.MarkPrefillComplete, b.Free} {
		before := relieved.Load()
		change("x")
		waittest.Until(t, func() error {
			if relieved.Load() == before {
				return errors.New("nobody is told")
			}
			return nil
		})
	}
}

// TestWhoIsGoneMakesRoom: so does word that a request which was to come first will not.
func TestWhoIsGoneMakesRoom(t *testing.T) {
	r, err := route.New(route.Config{BlockSize: 16, ID: 1, Settings: route.DefaultSettings()})
	if err != nil {
		t.Fatal(err)
	}
	r.SetDelay(time.Millisecond, 0)
	s := relief{Router: r}
	c := load.Change{Kind: load.Sought, Key: load.Key{Owner: 2, ID: "x"}, Held: true, Ranks: make([]load.Want, 1)}
	for i, room := range []bool{false, false, true, false} {
		if i == 2 {
			c.Ranks = nil
		}
		if s.Apply(c); s.any.Swap(false) != room {
			t.Errorf("word %d: it makes room: %v", i, !room)
		}
	}
}
