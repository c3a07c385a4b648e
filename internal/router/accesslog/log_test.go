package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// gate is a writer that waits until it is open.
type gate struct {
	open chan struct{}
	fail bool
	mu   sync.Mutex
	b    bytes.Buffer
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fail {
		return 0, errors.New("no room")
	}
	return g.b.Write(p)
}

// While nothing can be written no more is held than the limit, nobody waits, and what
// is dropped is counted: all entries are a line or counted.
func TestTheBufferIsBounded(t *testing.T) {
	for _, fail := range []bool{false, true} {
		g := &gate{open: make(chan struct{}), fail: fail}
		l := New(g, 10_000, slog.New(slog.DiscardHandler))
		const all = 10_000
		for i := range all {
			l.Add(&Entry{RequestID: fmt.Sprint(i), Path: strings.Repeat("x", i%300)})
		}
		if n := len(l.mu.buf); n > 10_000 {
			t.Errorf("%d bytes are held", n)
		}
		close(g.open)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l.Add(&Entry{}) // too late
		full, failed := l.Dropped()
		lines := uint64(strings.Count(g.b.String(), "\n"))
		if lines+full+failed != all+1 || fail == (failed == 0) || fail == (lines > 0) || full == 0 {
			t.Errorf("%d lines, %d dropped, %d failed", lines, full, failed)
		}
	}
	var none *Log
	none.Add(&Entry{})
	if full, failed := none.Dropped(); full+failed != 0 || none.Close() != nil {
		t.Error("no log counts something")
	}
}

// Whatever clients call things, each line is one JSON object that says it, bounded.
func FuzzEntry(f *testing.F) {
	f.Add("id", "/v1/\x00\"\n", "m\xff")
	f.Fuzz(func(t *testing.T, id, path, model string) {
		worker := uint64(1<<64 - 1)
		e := Entry{Time: time.Unix(1, 5e6), RequestID: id, Path: path, Model: model, Worker: &worker, Prefill: &worker, FirstByte: 1500 * time.Microsecond, Output: 3}
		line := e.append(nil)
		var got struct {
			Time, Path, Worker string
			Model              string
			First              float64 `json:"first_byte_ms"`
			Output             int     `json:"output_tokens"`
		}
		if err := json.Unmarshal(line, &got); err != nil || bytes.Count(line, []byte("\n")) != 1 || got.Time != "1970-01-01T00:00:01.005Z" ||
			got.Worker != "18446744073709551615" || got.First != 1.5 || got.Output != 3 || len(line) > 6*3*maxText+1000 {
			t.Fatalf("%s: %v", line, err)
		}
		if len(path) <= maxText && got.Path != strings.ToValidUTF8(path, "\uFFFD") && !strings.Contains(got.Path, "\uFFFD") {
			t.Fatalf("%q is shown as %q", path, got.Path)
		}
	})
}

// A file that is renamed is made anew, and no line is lost or there twice.
func TestTheFileIsMadeAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := Open(path, 1<<20, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l.Add(&Entry{RequestID: "first"})
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(30 * time.Second)
	n := 1
	for ; ; n++ {
		l.Add(&Entry{RequestID: fmt.Sprint(n)})
		if _, err := os.Stat(path); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("there is no new file")
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for _, p := range []string{path, path + ".1"} {
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		lines += bytes.Count(data, []byte("\n"))
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", info, err)
		}
	}
	if full, failed := l.Dropped(); uint64(lines)+full+failed != uint64(n)+1 {
		t.Errorf("%d lines of %d", lines, n+1)
	}
	if _, err := Open(filepath.Join(path, "x"), 1, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a file in a file is opened")
	}
}
