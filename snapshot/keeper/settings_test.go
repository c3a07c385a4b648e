package keeper

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/shard"
)

// A directory that no snapshot can be written into is told at the start, with what to do, and
// not when the first one is due; the start goes on without. One that can is left empty.
func TestADirectoryThatCannotBeWrittenIsTold(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	nc := serve(t, t.TempDir()).Conn()
	good := filepath.Join(t.TempDir(), "made")
	set := shard.New(shard.Config{Shards: 1})
	t.Cleanup(set.Close)
	for dir, failed := range map[string]uint64{filepath.Join(file, "below"): 1, good: 0} {
		var log bytes.Buffer
		m := metrics.NewSet()
		s := Settings{Dir: dir, Keep: 2, Messages: 1, Interval: time.Hour, Lease: time.Second, Memory: 4 << 20}
		k, _, err := s.Start(deadline(t), Config{Conn: nc, Replica: "r", Set: set, Metrics: m, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil || k == nil {
			t.Fatal(err)
		}
		if n := m.GetOrCreateCounter(`kvatlas_snapshot_failures_total{reason="storage"}`).Get(); n != failed || strings.Contains(log.String(), "give --snapshot-dir") != (failed > 0) {
			t.Errorf("%s: %d failures, %q", dir, n, log.String())
		}
	}
	if left, err := os.ReadDir(good); err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
}

// Settings of a Go program are what flags may be, or are refused: a ticker would end the process,
// and a negative number of messages would never come.
func TestSettingsThatCannotBe(t *testing.T) {
	nc := serve(t, t.TempDir()).Conn()
	for _, s := range []Settings{{Keep: 1}, {Keep: -1}, {Interval: -1}, {Lease: -1}, {Lease: 1}} {
		cfg := Config{Conn: nc, Replica: "r", Set: shard.New(shard.Config{Shards: 1})}
		s.Apply(&cfg)
		if _, err := Open(cfg); err == nil {
			t.Errorf("%+v is taken", s)
		}
	}
	var cfg Config
	(&Settings{Messages: -1}).Apply(&cfg)
	if cfg.Threshold != 0 {
		t.Errorf("%d messages of -1", cfg.Threshold)
	}
}
