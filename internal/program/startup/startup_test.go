package startup

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// start is a start of a few seconds, one phase each.
func start() func() Report {
	var p Progress
	begun := time.Now()
	return func() Report {
		switch d := time.Since(begun); {
		case d < 1500*time.Millisecond:
			return p.Report()
		case d < 2500*time.Millisecond:
			p.Begin(Restoring)
			p.Read(25, 100)
			p.Loaded(7)
			r := p.Report()
			return r
		default:
			r := p.Report()
			r.Streams(30, 60, time.Now().Add(-time.Second), d > 3500*time.Millisecond)
			return r
		}
	}
}

func tell(t *testing.T, line Line) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		Tell(t.Context(), time.Second, line, start())
	})
}

func TestTell(t *testing.T) {
	var out bytes.Buffer
	tell(t, Line{Out: &out, Words: true})
	const words = "connecting\nrestoring snapshots: 25 of 100 bytes, 7 blocks, 0 s left\nreading events: 30 messages, 60 left, 2 s left\ncaught up\n"
	if out.String() != words {
		t.Errorf("%q, want %q", out.String(), words)
	}
	out.Reset()
	tell(t, Line{Out: &out})
	var phases []string
	for line := range strings.Lines(out.String()) {
		var l struct{ Starting Report }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		phases = append(phases, l.Starting.Phase)
		if r := l.Starting; r.Phase == Reading && (r.Messages != 30 || r.MessagesLeft != 60 || r.SecondsLeft == nil || *r.SecondsLeft != 2 || r.Bytes != 25 || r.Blocks != 7) {
			t.Errorf("%s", line)
		}
	}
	if got := strings.Join(phases, " "); got != "connecting restoring reading caught_up" {
		t.Error(got)
	}
	out.Reset()
	tell(t, Line{Log: slog.New(slog.NewJSONHandler(&out, nil))})
	if !strings.Contains(out.String(), `"phase":"restoring","bytes":25,"bytes_total":100,"blocks":7`) {
		t.Error(out.String())
	}
}

// A start that is over before anybody would have asked says nothing; nor does
// one that was ended.
func TestTellNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		Tell(t.Context(), time.Second, Line{Out: &out}, func() Report { return Report{Phase: CaughtUp} })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		Tell(ctx, time.Second, Line{Out: &out}, func() Report { return Report{Phase: Reading} })
		if out.Len() > 0 {
			t.Error(out.String())
		}
	})
}

func TestLineTo(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // the test is over
	if l := LineTo(f, "text", slog.Default()); l.Log != nil || l.Words {
		t.Errorf("a file: %+v", l)
	}
	if l := LineTo(f, "json", slog.Default()); l.Log == nil {
		t.Errorf("a log of JSON: %+v", l)
	}
}

// What a damaged snapshot counted is taken back.
func TestProgressTakesBack(t *testing.T) {
	var p Progress
	p.Begin(Restoring)
	p.Read(10, 40)
	back := uint64(10)
	total := uint64(40)
	p.Read(-back, -total)
	if r := p.Report(); r.Bytes != 0 || r.BytesTotal != 0 || r.SecondsLeft != nil {
		t.Errorf("%+v", r)
	}
}
