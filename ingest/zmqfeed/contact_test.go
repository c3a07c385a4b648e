package zmqfeed

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestContact: an engine that is away for a minute is said so every ten seconds, with how long, and
// not with each attempt; then that it is back.
func TestContact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := NewContact(slog.New(slog.NewTextHandler(&out, nil)).With("dp_rank", 3))
		c.State(State{Phase: Connecting})
		c.State(State{Phase: Live})
		for range 20 {
			c.State(State{Phase: Connecting, Err: errors.New("refused")})
			time.Sleep(3 * time.Second)
		}
		c.State(State{Phase: CatchingUp})
		c.State(State{Phase: Live})
		c.State(State{Phase: Live})
		said := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(said) != 6 {
			t.Fatalf("%d lines:\n%s", len(said), out.String())
		}
		for i, want := range []string{"for=0s", "for=12s", "for=24s", "for=36s", "for=48s", "interrupted_for=1m0s"} {
			if !strings.Contains(said[i], want) || !strings.Contains(said[i], "dp_rank=3") || i < 5 != strings.Contains(said[i], "error=refused") {
				t.Errorf("line %d, want %s:\n%s", i, want, said[i])
			}
		}
	})
}
