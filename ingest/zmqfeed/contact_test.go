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
		c := NewContacts(slog.New(slog.NewTextHandler(&out, nil))).Rank(3)
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

// TestContactsOfManyRanks: when an engine dies, eight lines are for all of its ranks, and the first eight have one each.
func TestContactsOfManyRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		all := NewContacts(slog.New(slog.NewTextHandler(&out, nil)))
		var ranks []*Contact
		for n := range uint32(1024) {
			ranks = append(ranks, all.Rank(n))
		}
		for range 10 {
			for _, c := range ranks {
				c.State(State{Phase: Connecting, Err: errors.New("refused")})
			}
			time.Sleep(3 * time.Second)
		}
		for _, c := range ranks {
			c.State(State{Phase: Live})
		}
		said := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(said) != 32 || !strings.Contains(said[7], "dp_rank=7") || !strings.Contains(said[8], "suppressed=511") || !strings.Contains(said[31], "goes on") {
			t.Errorf("%d lines:\n%s", len(said), out.String())
		}
	})
}
