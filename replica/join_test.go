package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// A server that was joined and ends before it has answered anything ends no start: the
// replica runs the next one itself, as nobody else holds the data directory any more.
func TestAServerThatEndsWhileItIsJoined(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	dir := t.TempDir()
	quiet := slog.New(slog.DiscardHandler)
	owner, err := broker.Open(ctx, broker.Config{URL: broker.Embedded, DataDir: dir, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	// Whoever joins by the address comes through here: the first request ends the server.
	end := sync.OnceFunc(func() { _ = owner.Close() })
	ln := endAtFirstRequest(t, owner.Conn().ConnectedAddr(), end)
	if err := os.WriteFile(filepath.Join(dir, "address"), []byte(ln.Addr().String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := New(Config{NATS: NATS{URL: Embedded, DataDir: dir}, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(ctx); err != nil {
		t.Errorf("the start failed: %v", err)
	} else if !r.broker.Owner() {
		t.Error("the replica joined a server that is gone")
	}
	end()
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}
}

// A server that does not answer, or has no quorum, as a replica starts ends no start.
func TestAServerThatDoesNotAnswerAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log waittest.Log
		r := &Replica{log: slog.New(slog.NewTextHandler(&log, nil))}
		r.joined.Store(true)
		if why := r.Behind(); !strings.Contains(why, "connected to NATS, but") {
			t.Errorf("readiness says %q", why)
		}
		asked := 0
		err := r.answered(t.Context(), func() error {
			switch asked++; {
			case asked <= 20:
				return &jetstream.APIError{Code: 503}
			case asked <= 40:
				return fmt.Errorf("registry: %w", context.DeadlineExceeded)
			}
			return io.EOF
		})
		if lines := strings.Count(log.String(), "trying again"); !errors.Is(err, io.EOF) || asked != 41 || lines < 2 || lines > 5 {
			t.Errorf("asked %d times, %v, said %d times", asked, err, lines)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.answered(ctx, func() error { return nats.ErrTimeout }); !errors.Is(err, nats.ErrTimeout) {
			t.Error(err)
		}
	})
}

// endAtFirstRequest passes connections on to the server until a client publishes; then
// it calls end, closes the connection, and listens no more.
func endAtFirstRequest(t *testing.T, server string, end func()) net.Listener {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() { _, _ = io.Copy(client, up) }()
			go func() {
				buf := make([]byte, 64<<10)
				for {
					n, err := client.Read(buf)
					if err == nil && bytes.Contains(buf[:n], []byte("PUB ")) {
						_ = ln.Close()
						end()
						err = io.EOF
					}
					if err != nil {
						_, _ = client.Close(), up.Close()
						return
					}
					if _, err := up.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return ln
}
