package replica

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/shard"
)

// What an engine publishes while its socket is not reached is missing: its rank is stale, as one of
// a publisher is that does not answer.
func TestAnEngineThatIsAwayIsStale(t *testing.T) {
	dir := t.TempDir()
	list := filepath.Join(dir, "workers.json")
	one := `[{"worker_id": 7, "model": "m", "block_size": 4, "transport": "zmq", "endpoints": {"http": "http://127.0.0.1:1", "events": {"0": "tcp://127.0.0.1:1"}}}]`
	if err := os.WriteFile(list, []byte(one), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := declared(t, "--data-dir", dir, "--registry-workers", list)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Log, cfg.Metrics = slog.New(slog.DiscardHandler), obs.NewMetrics()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer r.Close(t.Context()) //nolint:errcheck // the test is over
	waittest.For(t, "the rank is stale", func() bool {
		return r.Stale()[event.Space{Model: "m", BlockSize: 4}][shard.RankID{Worker: 7}]
	})
	if text := r.doubtful(); !strings.Contains(text, "1 ranks are stale, worker 7") || !strings.Contains(text, "connect") {
		t.Errorf("doubtful: %q", text)
	}
	var text strings.Builder
	if cfg.Metrics.WritePrometheus(&text); !strings.Contains(text.String(), "\nkvatlas_ingest_stale_ranks 1\n") {
		t.Error("the metrics do not count it")
	}
}

// A rank that came from a publisher and is read from its engine by now counts once, as it is read by now.
func TestARankThatIsReadOtherwiseByNow(t *testing.T) {
	was := Reading{RankID: shard.RankID{Worker: 7}, Stale: true, Why: "its publisher does not answer"}
	for _, now := range []Reading{{RankID: was.RankID, Direct: true}, {RankID: was.RankID, Direct: true, Stale: true, Why: "its engine is away"}} {
		text := doubts(func(f func(*Reading)) { f(&was); f(&now) })
		if now.Stale != strings.Contains(text, "1 ranks are stale, worker 7, rank 0 of model \"\" the first: its engine is away") || !now.Stale && text != "" {
			t.Errorf("%+v: %q", now, text)
		}
	}
}
