package sidecar

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/modelfiles"
)

// The settings of the server are added to what its file says; one that says nothing of use is an error.
func TestServerSettings(t *testing.T) {
	c := &Config{ChatKwargs: `{"thinking":false}`}
	for _, f := range []struct{ says, want string }{
		{``, `{"default_chat_template_kwargs":{"thinking":false}}`},
		{`{"time_zone":"UTC","default_chat_template_kwargs":{}}`, `{"default_chat_template_kwargs":{"thinking":false},"time_zone":"UTC"}`},
		{`null`, ``}, {`[]`, ``}, {`{`, ``},
	} {
		dir := fstest.MapFS{"tokenizer.json": {Data: []byte("{}")}}
		if f.says != "" {
			dir[modelfiles.Server] = &fstest.MapFile{Data: []byte(f.says)}
		}
		set, err := c.files(dir)
		if got := string(set[modelfiles.Server]); got != f.want || (err == nil) != (f.want != "") || err != nil && !strings.Contains(err.Error(), modelfiles.Server) {
			t.Errorf("%s: %s %v", f.says, got, err)
		}
	}
}

// Why the tokenizer's files are not put is told once, not at each try.
func TestFilesThatAreNotThereAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &Sidecar{cfg: Config{Tokenizer: t.TempDir()}, log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithTimeout(t.Context(), 5*filesEvery+time.Second)
		defer cancel()
		s.keepFiles(ctx)
		if n := strings.Count(log.String(), "no tokenizer.json"); n != 1 {
			t.Errorf("told %d times:\n%s", n, &log)
		}
	})
}
