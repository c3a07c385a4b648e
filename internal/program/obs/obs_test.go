package obs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestLogsInTheFormAndLevelAsked(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(&out, LogConfig{Format: "json", Level: "warn"})
	if err != nil {
		t.Fatal(err)
	}
	log.Info("left out")
	log.Warn("kept", "blocks", 3)
	var line struct {
		Msg    string
		Blocks int
	}
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Msg != "kept" || line.Blocks != 3 {
		t.Errorf("%v in %q", err, out.String())
	}
	for _, c := range []LogConfig{{Format: "xml", Level: "info"}, {Format: "text", Level: "loud"}} {
		if _, err := NewLogger(&out, c); err == nil {
			t.Errorf("%v was accepted", c)
		}
	}
}

// The client's words for what is sent without a connection are of a buffer, which nobody who reads
// the log has heard of: it says that there is none, and that nothing is to be done here.
func TestWhatIsSentWithoutAConnectionSaysSo(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log, err := NewLogger(&out, LogConfig{Format: format, Level: "info"})
		if err != nil {
			t.Fatal(err)
		}
		log.Warn("no snapshot was taken", "error", fmt.Errorf("snapshot lease: %w", nats.ErrReconnectBufExceeded))
		if said := out.String(); strings.Contains(said, "buffer") || !strings.Contains(said, "snapshot lease: no connection to NATS, it goes on by itself") {
			t.Error(said)
		}
	}
}

// Errors say what is wrong and what to do in place of the client's words, are still what they are, and
// such as have none of these stay the same.
func TestPlain(t *testing.T) {
	if err := Plain(nil); err != nil {
		t.Error(err)
	}
	if err := Plain(io.EOF); err != io.EOF { //nolint:errorlint // the same
		t.Error(err)
	}
	for _, raw := range []error{nats.ErrNoServers, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrConnectionClosed, nats.ErrAuthorization,
		nats.ErrAccountAuthExpired, jetstream.ErrNoHeartbeat, jetstream.ErrNoStreamResponse, nats.ErrReconnectBufExceeded, nats.ErrStaleConnection,
		&jetstream.APIError{Code: 503, ErrorCode: 10008, Description: "JetStream system temporarily unavailable"}, &nats.APIError{Code: 503, ErrorCode: 10008, Description: "JetStream system temporarily unavailable"}} {
		err := Plain(fmt.Errorf("stream x: %w", raw))
		if !errors.Is(err, raw) || !strings.HasPrefix(err.Error(), "stream x: ") || strings.Contains(err.Error(), "nats:") || !strings.Contains(err.Error(), "NATS") {
			t.Errorf("%v: %v", raw, err)
		}
	}
}

func TestLimitedLogsOnceAnIntervalAndCountsTheRest(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	l := NewLimited(slog.New(slog.NewTextHandler(&out, nil)), time.Second, func() time.Time { return now })
	for range 5 {
		l.Warn("bad", "bad message")
		l.Warn("other", "other message")
	}
	if n := strings.Count(out.String(), "bad message"); n != 1 {
		t.Errorf("%d lines in one interval", n)
	}
	now = now.Add(time.Second)
	out.Reset()
	l.Warn("bad", "bad message", slog.Int("size", 7))
	if !strings.Contains(out.String(), "size=7 suppressed=4") {
		t.Errorf("got %q", out.String())
	}
	now = now.Add(time.Second)
	out.Reset()
	l.Warn("bad", "bad message")
	if strings.Contains(out.String(), "suppressed") {
		t.Errorf("nothing was left out, but got %q", out.String())
	}
	l.Log(slog.LevelDebug, "bad", "below the level")
	if strings.Contains(out.String(), "below") {
		t.Errorf("got %q", out.String())
	}
}

func TestLimitedIsBoundedAndSafeForConcurrentUse(t *testing.T) {
	l := NewLimited(slog.New(slog.DiscardHandler), time.Hour, nil)
	l.log = slog.New(slog.NewTextHandler(new(bytes.Buffer), nil))
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 1000 {
				l.Warn(fmt.Sprint(g*1000+i), "x")
			}
		})
	}
	wg.Wait()
	if n := l.keys.Size(); n != limitedKeys {
		t.Errorf("%d keys are kept", n)
	}
}

func TestMetricsHaveHelpAndType(t *testing.T) {
	m := NewMetrics()
	m.Counter("kvatlas_a_total", "Number of a.", "reason", `we"ird\x`).Add(3)
	m.Counter("kvatlas_a_total", "Number of a.", "reason", "b").Inc()
	m.Gauge("kvatlas_g", "A gauge\nof two lines.", func() float64 { return 2.5 })
	m.Gauge("kvatlas_computed_total", "A counter that a function computes.", func() float64 { return 7 })
	m.Help("kvatlas_never_total", "What never happened.")
	m.Histogram("kvatlas_h_seconds", "A duration in seconds.", LatencyBuckets(), "route", "x").Update(0.0007)
	var out bytes.Buffer
	m.WritePrometheus(&out)
	for _, want := range []string{
		"# HELP kvatlas_a_total Number of a.\n# TYPE kvatlas_a_total counter\n",
		`kvatlas_a_total{reason="we\"ird\\x"} 3` + "\n",
		`# HELP kvatlas_g A gauge\nof two lines.` + "\n# TYPE kvatlas_g gauge\nkvatlas_g 2.5\n",
		"# TYPE kvatlas_computed_total counter\nkvatlas_computed_total 7\n",
		"# TYPE kvatlas_h_seconds histogram\n",
		`kvatlas_h_seconds_bucket{route="x",le="0.001"} 1`,
		"# HELP kvatlas_never_total What never happened.\n",
		"# HELP kvatlas_build_info What was built",
		"kvatlas_build_info{version=",
		"go_goroutines ",
		"process_resident_memory_bytes ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q", want)
		}
	}
	for family := range strings.SplitSeq(out.String(), "# HELP ") {
		name, _, _ := strings.Cut(family, "\n")
		if strings.HasPrefix(name, "kvatlas_") && !strings.Contains(name, " ") {
			t.Errorf("no help text for %s", name)
		}
	}
	for _, line := range []string{"# TYPE", "# HELP"} {
		if strings.Count(out.String(), line+" kvatlas_a_total") != 1 {
			t.Errorf("%s more than once for one family", line)
		}
	}
}

func TestVersionNamesTheToolchain(t *testing.T) {
	v := ReadVersion()
	if v.Version == "" || !strings.HasPrefix(v.Go, "go") || !strings.Contains(v.String(), v.Go) {
		t.Errorf("%+v: %s", v, v)
	}
}

// TestEveryFamilyHasHelp covers those of the library, which writes no texts.
func TestEveryFamilyHasHelp(t *testing.T) {
	var b bytes.Buffer
	NewMetrics().WritePrometheus(&b)
	n := 0
	for line := range strings.Lines(b.String()) {
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			if n++; len(strings.Fields(rest)) < 3 {
				t.Errorf("no help: %s", line)
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d families", n)
	}
}
