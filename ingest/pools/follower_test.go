package pools

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// index is an Index that places what is not in unknown.
type index struct {
	mu       sync.Mutex
	readable bool
	has      map[uint64]bool
	unknown  map[uint64]bool
}

func (x *index) PoolReadable(_ string, readable bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.readable = readable
}

func (x *index) PoolHidden(string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.readable
}

func (x *index) PoolStore(_ context.Context, _ string, hashes []uint64) (unplaced []uint64, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range hashes {
		if x.unknown[e] {
			unplaced = append(unplaced, e)
		} else {
			x.has[e] = true
		}
	}
	return unplaced, nil
}

func (x *index) PoolRemove(ctx context.Context, _ string, hashes []uint64) error {
	return x.PoolKeep(ctx, "", func(e uint64) bool { return !slices.Contains(hashes, e) })
}

func (x *index) PoolKeep(_ context.Context, _ string, keep func(uint64) bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for e := range x.has {
		if !keep(e) {
			delete(x.has, e)
		}
	}
	return nil
}

// store is a master: its keys, and its stream.
type store struct {
	t    *testing.T
	pub  *enginepub.Publisher
	keys *httptest.Server
	mu   sync.Mutex
	all  map[string]bool
	hold chan struct{} // a list waits for it, if it is there
	lies bool          // it answers 500
	seen int           // lists
	log  lines         // of who follows it
}

// lines is a log.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

func newStore(t *testing.T) *store {
	t.Helper()
	s := &store{t: t, all: map[string]bool{}}
	var err error
	if s.pub, err = enginepub.New(enginepub.Config{Endpoint: "tcp://127.0.0.1:0"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.pub.Close() })
	s.keys = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		lines, hold, lies := "", s.hold, s.lies
		for key := range s.all {
			lines += key + "\n"
		}
		s.seen++
		s.mu.Unlock()
		if hold != nil {
			<-hold
		}
		if lies || r.URL.Path != "/get_all_keys" {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, lines)
	}))
	t.Cleanup(s.keys.Close)
	return s
}

// heard waits until somebody hears what is published.
func (s *store) heard() {
	s.t.Helper()
	waittest.For(s.t, "a subscription", func() bool { return s.pub.Subscribers() > 0 })
}

// say stores or removes parts of a block, as one message; silent ones nobody hears of.
func (s *store) say(stored, heard bool, hash uint64, parts ...int) {
	if heard {
		s.heard()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []any
	kind := map[bool]string{true: "stored", false: "removed"}[stored]
	for _, p := range parts {
		key := objectKey(p, hash)
		s.all[key] = stored
		if !stored {
			delete(s.all, key)
		}
		events = append(events, mptest.Map{"event_type", kind, "object_key", key, "tenant_id", "default", "medium", "cpu"})
	}
	if heard {
		s.pub.Publish(mptest.Encode([]any{uint64(1764000000123), events, 0}))
	}
}

func follow(t *testing.T, s *store, x *index, more ...func(*Config)) *Follower {
	t.Helper()
	cfg := Config{Place: 5 * time.Millisecond, RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&s.log, nil))}
	for _, set := range more {
		set(&cfg)
	}
	f := New(cfg, "p",
		&event.PoolSource{Events: s.pub.Endpoint(), Keys: s.keys.URL, Prefix: "d@m", Parts: 2}, x)
	runFollower(t, f)
	return f
}

func runFollower(t *testing.T, f *Follower) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
}

// is waits until lookups see these blocks, or none.
func (x *index) is(t *testing.T, f *Follower, when string, readable bool, want ...uint64) {
	t.Helper()
	waittest.Until(t, func() error {
		x.mu.Lock()
		defer x.mu.Unlock()
		var have []uint64
		for e := range x.has {
			have = append(have, e)
		}
		slices.Sort(have)
		if x.readable != readable || readable && !slices.Equal(have, want) {
			return fmt.Errorf("%s: readable %v, blocks %v, want %v; %+v", when, x.readable, have, want, f.Status())
		}
		return nil
	})
}

// TestAPoolIsFollowed: from a list on by its events, over a connection that breaks with changes that
// nobody hears of, and over messages that are missing.
func TestAPoolIsFollowed(t *testing.T) {
	s, x := newStore(t), &index{has: map[uint64]bool{99: true}, unknown: map[uint64]bool{7: true}}
	s.say(true, false, 1, 0, 1)
	s.say(true, false, 2, 0)
	f := follow(t, s, x)
	x.is(t, f, "listed", true, 1)
	s.say(true, true, 2, 1)
	s.say(true, true, 3, 0)
	x.is(t, f, "stored", true, 1, 2)
	s.say(false, true, 1, 1)
	x.is(t, f, "one part is gone", true, 2)
	s.say(true, true, 7, 0, 1)
	waittest.Until(t, func() error {
		if st := f.Status(); st.Unplaced != 1 || st.Blocks != 2 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	x.mu.Lock()
	delete(x.unknown, 7)
	x.mu.Unlock()
	x.is(t, f, "a worker tells its place", true, 2, 7)

	s.mu.Lock()
	s.lies = true
	s.mu.Unlock()
	s.pub.Disconnect()
	x.is(t, f, "the stream is broken", false)
	s.say(false, false, 2, 0, 1) // nobody hears it
	s.say(true, false, 1, 1)
	s.mu.Lock()
	s.lies = false
	s.mu.Unlock()
	x.is(t, f, "it is back", true, 1, 7)
	lists := f.Status().Lists
	waittest.Until(t, func() error { // the first message that is heard of the new connection has it list anew
		if s.pub.Publish(mptest.Encode([]any{uint64(1764000000123), []any{}, 0})); f.Status().Lists == lists {
			return fmt.Errorf("%+v", f.Status())
		}
		return nil
	})

	s.say(true, true, 4, 0, 1)
	x.is(t, f, "after that", true, 1, 4, 7)
	gaps := f.Status().Gaps
	s.heard()
	s.pub.Publish([]byte{0xc1})
	s.say(true, true, 5, 0, 1)
	x.is(t, f, "after what cannot be read", true, 1, 4, 5, 7)
	if st := f.Status(); st.Gaps != gaps+1 || st.Left != (Left{}) {
		t.Errorf("%+v", st)
	}
}

// TestWhatComesBesideAList: what is said while the keys are listed counts after the list.
func TestWhatComesBesideAList(t *testing.T) {
	s, x := newStore(t), &index{has: map[uint64]bool{}}
	s.say(true, false, 1, 0, 1)
	f := follow(t, s, x)
	x.is(t, f, "listed", true, 1)
	hold := make(chan struct{})
	s.mu.Lock()
	s.hold = hold
	seen := s.seen
	s.mu.Unlock()
	s.say(true, true, 9, 0, 1) // the first message: another list
	waittest.Until(t, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.seen == seen {
			return fmt.Errorf("no other list: %+v", f.Status())
		}
		return nil
	})
	s.say(false, true, 1, 0) // the list has it
	s.say(true, true, 2, 0, 1)
	x.is(t, f, "while it is read", true, 2, 9)
	lists := f.Status().Lists
	s.mu.Lock()
	s.hold = nil
	s.mu.Unlock()
	close(hold)
	waittest.Until(t, func() error {
		if f.Status().Lists == lists {
			return fmt.Errorf("%+v", f.Status())
		}
		return nil
	})
	x.is(t, f, "and after it", true, 2, 9)
}

// TestMorePartsThanAreSaid: with blocks of more parts than the registration says nobody knows which
// are whole, and lookups see nothing.
func TestMorePartsThanAreSaid(t *testing.T) {
	s, x := newStore(t), &index{has: map[uint64]bool{}}
	s.say(true, false, 1, 0, 1)
	f := follow(t, s, x)
	x.is(t, f, "listed", true, 1)
	s.say(true, true, 2, 2)
	x.is(t, f, "another part", false)
	if st := f.Status(); !strings.Contains(st.Cause, "parts: 2") {
		t.Errorf("%+v", st)
	}
	waittest.For(t, "a line of the log that says why", func() bool { return strings.Contains(s.log.text(), "parts: 2") })
}
