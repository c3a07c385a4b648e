package startup

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
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

func TestTell(t *testing.T) {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		Tell(t.Context(), time.Second, slog.New(slog.NewJSONHandler(&out, nil)), start())
	})
	var got []string
	for line := range strings.Lines(out.String()) {
		var l map[string]any
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if l["msg"] != "starting" || l["level"] != "INFO" {
			t.Error(line)
		}
		_, fields, _ := strings.Cut(strings.TrimSpace(line), `"phase":`)
		got = append(got, fields)
	}
	want := []string{
		`"connecting"}`,
		`"restoring","bytes":25,"bytes_total":100,"blocks":7,"seconds_left":0}`,
		`"reading","bytes":25,"bytes_total":100,"blocks":7,"messages":30,"messages_left":60,"seconds_left":2}`,
		`"caught_up","bytes":25,"bytes_total":100,"blocks":7,"messages":30,"messages_left":60}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// A start that is over before anybody would have asked says nothing; nor does
// one that was ended.
func TestTellNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		Tell(t.Context(), time.Second, log, func() Report { return Report{Phase: CaughtUp} })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		Tell(ctx, time.Second, log, func() Report { return Report{Phase: Reading} })
		if out.Len() > 0 {
			t.Error(out.String())
		}
	})
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
