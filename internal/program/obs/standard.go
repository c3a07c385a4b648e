package obs

import (
	"log"
	"log/slog"
	"strings"
	"time"
)

// Standard makes what libraries print by package log lines of l, without what they
// quote, which may be what a peer sent: net/http quotes an engine's answer that nobody
// asked for. It is for a program, as package log is the whole process's.
func Standard(l *slog.Logger) {
	log.SetFlags(0)
	log.SetOutput(standard{NewLimited(l, time.Second, nil)})
}

type standard struct{ limit *Limited }

// Write implements io.Writer: package log calls it once for each line.
func (s standard) Write(p []byte) (int, error) {
	text, _, _ := strings.Cut(string(p), `"`)
	s.limit.Warn("library", "a library has something to say", slog.String("text", strings.TrimSpace(text)))
	return len(p), nil
}
