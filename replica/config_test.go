package replica

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/sysmem"
)

// declared returns what the settings make of the arguments.
func declared(t *testing.T, args ...string) (c Config, err error) {
	t.Helper()
	set := conf.New("kvindexer", "test")
	c.Declare(set)
	_, err = set.Run(args, nil, io.Discard)
	return c, err
}

// A Config in a program's source and one from settings have the same defaults.
func TestDefaults(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	set, err := declared(t)
	if err != nil {
		t.Fatal(err)
	}
	source := Config{NATS: NATS{URL: Embedded}}.withDefaults()
	if set = set.withDefaults(); set.Namespace != source.Namespace || set.MemoryBudget != source.MemoryBudget || set.IngestBytes != source.IngestBytes ||
		set.Registry.Forget != source.Registry.Forget || set.NATS.URL != source.NATS.URL || set.NATS.DataDir != source.NATS.DataDir {
		t.Errorf("from settings %+v, in source %+v", set, source)
	}
	if a, b := (Config{}).withDefaults(), source; a.Replica == b.Replica {
		t.Errorf("two replicas of a process are %q", a.Replica)
	}
}

// No lag is a setting, too, and none given is the default.
func TestReadyLag(t *testing.T) {
	for args, want := range map[string]int{"--ready-lag=0": -1, "--ready-lag=7": 7, "--namespace=n": 1000} {
		if c, err := declared(t, args); err != nil || c.ReadyLag != want {
			t.Errorf("%s: %d, want %d: %v", args, c.ReadyLag, want, err)
		}
	}
}

// An index is bounded unless told otherwise.
func TestBudget(t *testing.T) {
	memory, _ := sysmem.Limit()
	budget := func(c Config) int64 {
		t.Helper()
		c.Fed = true
		r, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Set().Close)
		_, budget := r.Set().MemoryBudget()
		return budget
	}
	for args, want := range map[string]int64{"--namespace=n": memory / 2, "--memory-budget=0": 0, "--memory-budget=8MiB": 8 << 20} {
		c, err := declared(t, args)
		if err != nil {
			t.Fatal(err)
		}
		if got := budget(c); got != want {
			t.Errorf("%s: %d bytes, want %d", args, got, want)
		}
	}
	for given, want := range map[int64]int64{0: memory / 2, -1: 0, 1 << 20: 1 << 20} {
		if got := budget(Config{MemoryBudget: given}); got != want {
			t.Errorf("%d: %d bytes, want %d", given, got, want)
		}
	}
}

// Without NATS nothing tells of events: that is known before anything is waited for.
func TestNothingToReadIsRefused(t *testing.T) {
	if _, err := declared(t, "--nats=none"); err == nil {
		t.Error("settings without NATS are good")
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a replica of nothing is made")
	}
}

// A process that may use little memory has little of it in flight.
func TestLittleMemoryHasLittleInFlight(t *testing.T) {
	for limit, want := range map[int64]int64{64 << 20: 4 << 20, 256 << 20: 8 << 20, 1 << 30: 32 << 20, 64 << 30: 64 << 20} {
		if n := defaultInFlight(limit, true); n != want {
			t.Errorf("with %d bytes of memory %d are in flight, want %d", limit, n, want)
		}
	}
	if n := defaultInFlight(0, false); n != 64<<20 {
		t.Errorf("%d bytes are in flight where nobody knows of a limit", n)
	}
}

// A budget that is never reached, because the system ends the process before, is warned of.
func TestABudgetOfAllMemory(t *testing.T) {
	memory, known := sysmem.Limit()
	if !known {
		t.Skip("nobody knows how much memory there is")
	}
	for budget, want := range map[int64]bool{memory: true, memory / 2: false, -1: false} {
		var log strings.Builder
		if _, err := New(Config{Fed: true, MemoryBudget: budget, Log: slog.New(slog.NewTextHandler(&log, nil))}); err != nil {
			t.Fatal(err)
		}
		if warned := strings.Contains(log.String(), "the memory budget is all that this process may use"); warned != want {
			t.Errorf("a budget of %d of %d bytes: %s", budget, memory, &log)
		}
	}
}
