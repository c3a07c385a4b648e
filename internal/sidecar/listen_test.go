package sidecar

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/obs"
)

func openSocket(path string) (*socket, error) {
	return newSocket(&Config{Socket: path, BlockSize: 4, MaxLine: 1 << 20}, nil, slog.New(slog.NewTextHandler(io.Discard, nil)), obs.NewMetrics())
}

// A path that cannot be listened at ends the start, and what is there stays.
func TestAnUnusableSocketEndsTheStart(t *testing.T) {
	dir := t.TempDir()
	used := filepath.Join(dir, "file")
	if err := os.WriteFile(used, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := openSocket(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	for _, path := range []string{filepath.Join(dir, "missing", "s"), used, filepath.Join(dir, "s"), dir, strings.Repeat("x", 200)} {
		if _, err := openSocket(path); err == nil || !strings.Contains(err.Error(), "--socket") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if b, err := os.ReadFile(used); string(b) != "mine" || err != nil {
		t.Errorf("the file is %q, %v", b, err)
	}
	if c, err := net.Dial("unix", filepath.Join(dir, "s")); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
}

// A socket whose file goes away is made anew, as soon as that is possible;
// until then it says why it waits. In the end it leaves no file of its own.
func TestABrokenSocketIsMended(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s, err := openSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.run(ctx) }()
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !ok(); <-time.After(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s; it waits for: %q", what, s.waiting())
			}
		}
	}
	answers := func() bool {
		c, err := net.Dial("unix", path)
		if err != nil {
			return false
		}
		defer c.Close()
		if _, err := c.Write([]byte("{}\n")); err != nil {
			return false
		}
		n, err := c.Read(make([]byte, 10)) // an error about the hello
		return n > 0 && err == nil
	}
	until("nobody answers", answers)
	if err := os.WriteFile(path+"2", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+"2", path); err != nil { // in one step; listening fails now
		t.Fatal(err)
	}
	until("it does not say that it is broken", func() bool { return s.waiting() != "" })
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	until("it is not mended", func() bool { return s.waiting() == "" })
	until("nobody answers after that", answers)
	cancel()
	<-done
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
}
