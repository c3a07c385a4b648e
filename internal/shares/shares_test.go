package shares

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/shard"
)

// one returns a Shares of one share, which answers as handle says.
func one(t *testing.T, cfg Config, handle http.HandlerFunc) *Shares {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(Header, "0/1")
		handle(w, r)
	}))
	t.Cleanup(server.Close)
	cfg.URLs = []string{server.URL}
	s, err := New(cfg, obs.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Who has no time to wait for a share does not make it a slow one for all others.
func TestAShareIsNotSlowForWhoIsInAHurry(t *testing.T) {
	asked, hasty, answer := make(chan struct{}, 10), make(chan struct{}, 100), make(chan struct{})
	release := sync.OnceFunc(func() { close(answer) })
	s := one(t, Config{Wait: 20 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "hurrying") {
			hasty <- struct{}{}
		} else {
			asked <- struct{}{}
		}
		<-answer
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"error":{"reason":"unknown_model"}}`))
	})
	t.Cleanup(release) // before the server waits for its answers
	x := s.Space(event.Space{Model: "m", BlockSize: 16})
	nobody := func(shard.RankID, [event.NumTiers]uint32) { t.Error("a rank is found") }
	waittest.For(t, "it is asked", func() bool { // which a busy machine may not get to within the time
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		unknown := x.Find(ctx, []uint64{binary.LittleEndian.Uint64([]byte("hurrying"))}, nobody)
		cancel()
		if unknown == nil || !unknown(1) {
			t.Fatal("it has answered in time")
		}
		return len(hasty) > 0
	})
	done := make(chan bool, 2)
	for range 2 {
		go func() { done <- x.Find(t.Context(), []uint64{1}, nobody) == nil }()
	}
	for range 2 {
		select {
		case <-asked:
		case ok := <-done:
			t.Fatalf("one of two requests was not asked; known: %v", ok)
		}
	}
	release()
	if one, other := <-done, <-done; !one || !other {
		t.Error("the answer is unknown")
	}
}

// A token's file that is gone or empty for a moment, as while it is written anew, leaves
// the token as it was.
func TestTheTokenStaysWhileItsFileIsWritten(t *testing.T) {
	var last atomic.Value
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := one(t, Config{Wait: 20 * time.Second, Token: file}, func(w http.ResponseWriter, r *http.Request) {
		last.Store(r.Header.Get("Authorization"))
		_, _ = w.Write([]byte(`{"spaces":[]}`))
	})
	look := func(want string) {
		t.Helper()
		s.look(t.Context())
		if got := last.Load(); got != want {
			t.Errorf("asked with %q, want %q", got, want)
		}
	}
	write("a\n")
	look("Bearer a")
	write("")
	look("Bearer a")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	look("Bearer a")
	write("b\n")
	look("Bearer b")
}

// What cannot be is refused: a ticker would end the process.
func TestNoTimeIsBelowNothing(t *testing.T) {
	for _, c := range []Config{{Wait: -1}, {Every: -1}, {Inflight: -1}} {
		c.URLs = []string{"http://10.0.0.7:8090"}
		if err := c.Check(); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

// An address with a user would be in logs; and nobody would be told of the user.
func TestAnAddressHasNoUser(t *testing.T) {
	for address, want := range map[string]bool{"http://10.0.0.7:8090": true, "http://u:hunter2@10.0.0.7:8090": false, "10.0.0.7": false, "http://10.0.0.7:8090/?key=x": false, "http://u:hunter2@h:port": false} {
		err := (&Config{URLs: []string{address}}).Check()
		if (err == nil) != want || err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", address, err)
		}
	}
}
