package startup

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"
)

// The phases of a start, in their order.
const (
	Connecting = "connecting" // to the broker, and reading who is registered
	Restoring  = "restoring"  // snapshots
	Copying    = "copying"    // a peer's dump
	Reading    = "reading"    // what the streams have since
	CaughtUp   = "caught_up"
)

// Report is how far a start is. Counts of a phase stay as they are after it.
type Report struct {
	Phase string `json:"phase"`
	// Bytes are of snapshots and dumps that are read, BytesTotal of all that are
	// to be read, 0 if not known. Blocks are those that were loaded, each once
	// for all its holders in snapshots, and once for each holder in dumps.
	Bytes      uint64 `json:"bytes"`
	BytesTotal uint64 `json:"bytes_total"`
	Blocks     uint64 `json:"blocks"`
	// Messages of the streams are applied since, MessagesLeft are still to come.
	Messages     uint64 `json:"messages"`
	MessagesLeft uint64 `json:"messages_left"`
	// SecondsLeft is how long the phase will take at its pace so far; nil if not
	// known.
	SecondsLeft *float64 `json:"seconds_left,omitempty"`
}

// Streams adds how far the reading of streams is that began at the time.
func (r *Report) Streams(read, left uint64, since time.Time, caughtUp bool) {
	r.Phase, r.Messages, r.MessagesLeft, r.SecondsLeft = CaughtUp, read, left, nil
	if !caughtUp {
		r.Phase = Reading
		r.left(since, read, left)
	}
}

// left sets SecondsLeft: done of a phase took the time since begun, and left is
// to come.
func (r *Report) left(begun time.Time, done, left uint64) {
	if r.SecondsLeft = nil; done > 0 {
		s := max(0, time.Since(begun).Seconds()) / float64(done) * float64(left)
		r.SecondsLeft = &s
	}
}

// String says it in words.
func (r *Report) String() string {
	var s string
	switch r.Phase {
	case Restoring:
		s = fmt.Sprintf("restoring snapshots: %d of %d bytes, %d blocks", r.Bytes, r.BytesTotal, r.Blocks)
	case Copying:
		s = fmt.Sprintf("copying a peer's dump: %d bytes, %d blocks", r.Bytes, r.Blocks)
	case Reading:
		s = fmt.Sprintf("reading events: %d messages, %d left", r.Messages, r.MessagesLeft)
	default:
		return strings.ReplaceAll(r.Phase, "_", " ")
	}
	if r.SecondsLeft != nil {
		s += fmt.Sprintf(", %.0f s left", *r.SecondsLeft)
	}
	return s
}

// Line is where Tell writes to.
type Line struct {
	// Log gets fields. Where it is nil, Out gets a line a report: of words if
	// Words is set, for who looks on at a terminal, else of JSON.
	Log   *slog.Logger
	Out   io.Writer
	Words bool
}

// LineTo returns the line for a program that logs to the file in the format: it
// is JSON unless the file is a terminal.
func LineTo(file *os.File, format string, log *slog.Logger) Line {
	if format == "json" {
		return Line{Log: log}
	}
	info, err := file.Stat()
	return Line{Out: file, Words: err == nil && info.Mode()&os.ModeCharDevice != 0}
}

// Tell writes a line every so often, until everything is caught up with or ctx
// ends, and a last one then. A start that is over at once writes none.
func Tell(ctx context.Context, every time.Duration, to Line, now func() Report) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for told := false; ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		r := now()
		if r.Phase == CaughtUp && !told {
			return
		}
		told = true
		to.write(&r)
		if r.Phase == CaughtUp {
			return
		}
	}
}

func (l *Line) write(r *Report) {
	switch {
	case l.Log != nil:
		args := []any{"phase", r.Phase, "bytes", r.Bytes, "bytes_total", r.BytesTotal, "blocks", r.Blocks, "messages", r.Messages, "messages_left", r.MessagesLeft}
		if r.SecondsLeft != nil {
			args = append(args, "seconds_left", *r.SecondsLeft)
		}
		l.Log.Info("starting", args...)
	case l.Words:
		_, _ = fmt.Fprintln(l.Out, r.String()) // nobody reads it any more
	default:
		text, err := json.Marshal(map[string]*Report{"starting": r})
		if err == nil { // numbers and texts always have a form
			_, _ = l.Out.Write(append(text, '\n'))
		}
	}
}
