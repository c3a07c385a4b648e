package startup

import (
	"context"
	"fmt"
	"log/slog"
	"math"
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

// Tell logs a line every so often, until everything is caught up with or ctx
// ends, and a last one then. A start that is over at once logs none.
func Tell(ctx context.Context, every time.Duration, log *slog.Logger, now func() Report) {
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
		r.log(log)
		if r.Phase == CaughtUp {
			return
		}
	}
}

// log writes a line of the numbers that the phase has.
func (r *Report) log(log *slog.Logger) {
	args := []any{"phase", r.Phase}
	if r.Bytes > 0 {
		args = append(args, "bytes", r.Bytes, "bytes_total", r.BytesTotal, "blocks", r.Blocks)
	}
	if r.Messages > 0 || r.MessagesLeft > 0 {
		args = append(args, "messages", r.Messages, "messages_left", r.MessagesLeft)
	}
	if r.SecondsLeft != nil {
		args = append(args, "seconds_left", math.Round(*r.SecondsLeft))
	}
	log.Info("starting", args...)
}
