package replica

import (
	"io"
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
	if set = set.withDefaults(); set.Namespace != source.Namespace || set.MemoryBudget != source.MemoryBudget ||
		set.NATS.URL != source.NATS.URL || set.NATS.DataDir != source.NATS.DataDir {
		t.Errorf("from settings %+v, in source %+v", set, source)
	}
	if a, b := (Config{}).withDefaults(), source; a.Replica == b.Replica {
		t.Errorf("two replicas of a process are %q", a.Replica)
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
