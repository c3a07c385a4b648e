package proxy

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/router/accesslog"
)

// The answer to HEAD has the head of GET's and no body: of that no bytes are logged.
func TestBytesOfAnswersAreThoseThatAreSent(t *testing.T) {
	var lines strings.Builder // the log is closed before it is read
	log := accesslog.New(&lines, 1<<20, slog.New(slog.DiscardHandler))
	l, _ := newKeepers(t)
	l.proxy.cfg.AccessLog = log
	var sent []int64
	for _, method := range []string{"GET", "HEAD"} {
		for _, path := range []string{"/v1/models", "/nowhere"} {
			_, data := l.do(method, path)
			sent = append(sent, int64(len(data)))
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	i := 0
	for line := range strings.Lines(lines.String()) {
		var e struct{ Bytes int64 }
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Bytes != sent[i] || (e.Bytes > 0) != (i < 2) {
			t.Errorf("%d bytes came of %s, %v", sent[i], line, err)
		}
		i++
	}
	if i != len(sent) {
		t.Errorf("%d lines of %d requests", i, len(sent))
	}
}
