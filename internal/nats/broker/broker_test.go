package broker

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func testConfig(t *testing.T, dir string) Config {
	t.Helper()
	return Config{URL: Embedded, DataDir: dir, Log: slog.New(slog.DiscardHandler)}
}

func open(t *testing.T, cfg Config) *Broker {
	t.Helper()
	b, err := Open(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func closeBroker(t *testing.T, b *Broker) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// roundTrip proves that the connection reaches a server with JetStream.
func roundTrip(t *testing.T, b *Broker) {
	t.Helper()
	js, err := jetstream.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AccountInfo(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

func TestEmbeddedIsPrivateAndOnLoopback(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	b := open(t, testConfig(t, dir))
	defer closeBroker(t, b)
	roundTrip(t, b)
	if !b.Owner() {
		t.Error("the first process does not own the server")
	}
	for name, want := range map[string]fs.FileMode{".": 0o700, credentialsFile: 0o600, addressFile: 0o600, lockFile: 0o600} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := st.Mode().Perm(); got != want {
			t.Errorf("mode of %s is %o, want %o", name, got, want)
		}
	}
	addr, err := readAddress(dir)
	if err != nil {
		t.Fatal(err)
	}
	if host, _, _ := net.SplitHostPort(addr); host != "127.0.0.1" {
		t.Errorf("listens on %s", addr)
	}
	if nc, err := nats.Connect("nats://" + addr); !errors.Is(err, nats.ErrAuthorization) {
		nc.Close()
		t.Errorf("connecting without credentials: %v, want an authorization error", err)
	}
	cred, err := readCredentials(dir)
	if err != nil {
		t.Fatal(err)
	}
	if nc, err := nats.Connect("nats://"+addr, nats.UserInfo(cred.User, cred.Password+"x")); !errors.Is(err, nats.ErrAuthorization) {
		nc.Close()
		t.Errorf("connecting with a wrong password: %v, want an authorization error", err)
	}
}

func TestSecondProcessJoinsAndSurvivesARestartOfTheOwner(t *testing.T) {
	dir := t.TempDir()
	owner := open(t, testConfig(t, dir))
	joined := open(t, testConfig(t, dir))
	defer closeBroker(t, joined)
	if joined.Owner() {
		t.Fatal("two servers on one data directory")
	}
	roundTrip(t, joined)
	address := joined.Address()

	closeBroker(t, owner)
	owner = open(t, testConfig(t, dir))
	defer closeBroker(t, owner)
	if !owner.Owner() {
		t.Fatal("the lock was not released")
	}
	if owner.Address() != address {
		t.Fatalf("the server moved from %s to %s", address, owner.Address())
	}
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	deadline := time.After(time.Minute)
	for !joined.Conn().IsConnected() {
		select {
		case <-poll.C:
		case <-deadline:
			t.Fatal("the joined process does not find the restarted server")
		}
	}
	roundTrip(t, joined)
}

// A process that has joined finds the next server, which has another port as somebody has taken
// that of the one before.
func TestTheNextServerIsFoundAtItsPort(t *testing.T) {
	dir := t.TempDir()
	owner := open(t, testConfig(t, dir))
	joined := open(t, testConfig(t, dir))
	defer closeBroker(t, joined)
	before, err := readAddress(dir)
	if err != nil {
		t.Fatal(err)
	}
	closeBroker(t, owner)
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp", before)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() //nolint:errcheck // nothing is read or written there
	owner = open(t, testConfig(t, dir))
	defer closeBroker(t, owner)
	if now, err := readAddress(dir); err != nil || now == before {
		t.Fatalf("the next server is at %s: %v", now, err)
	}
	for ctx := testContext(t); !joined.Conn().IsConnected(); {
		select {
		case <-ctx.Done():
			t.Fatal("the next server is not found")
		case <-time.After(time.Millisecond):
		}
	}
	roundTrip(t, joined)
}

// A process that starts while the owner is going away ends up with a server,
// its own or the other's, whatever the interleaving.
func TestJoinWhileTheOwnerLeaves(t *testing.T) {
	dir := t.TempDir()
	for range 5 {
		owner := open(t, testConfig(t, dir))
		closed := make(chan error, 1)
		go func() { closed <- owner.Close() }()
		b := open(t, testConfig(t, dir))
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		if b.Owner() {
			roundTrip(t, b)
		}
		closeBroker(t, b)
	}
}

func TestDamagedCredentialsAreRefusedWithAdvice(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, credentialsFile), []byte(`{"user":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(testContext(t), testConfig(t, dir)); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Fatalf("error %v", err)
	}
	// The failed start holds nothing.
	if err := os.Remove(filepath.Join(dir, credentialsFile)); err != nil {
		t.Fatal(err)
	}
	closeBroker(t, open(t, testConfig(t, dir)))
}

func TestABusyPortIsReported(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	cfg := testConfig(t, t.TempDir())
	cfg.Port = l.Addr().(*net.TCPAddr).Port
	if _, err := Open(testContext(t), cfg); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("error %v", err)
	}
}

func TestURLConnectsWithItsCredentials(t *testing.T) {
	dir := t.TempDir()
	owner := open(t, testConfig(t, dir))
	defer closeBroker(t, owner)
	addr, _ := readAddress(dir)
	cred, _ := readCredentials(dir)
	cfg := Config{URL: "nats://" + cred.User + ":" + cred.Password + "@" + addr, Log: slog.New(slog.DiscardHandler)}
	b := open(t, cfg)
	defer closeBroker(t, b)
	roundTrip(t, b)

	cfg.URL = "nats://nobody:secret@" + addr
	_, err := Open(testContext(t), cfg)
	if !errors.Is(err, nats.ErrAuthorization) {
		t.Fatalf("wrong credentials: %v", err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error shows the password: %v", err)
	}
}

func TestRefusedConfigurations(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no URL":              {},
		"no data directory":   {URL: Embedded},
		"no port":             {URL: Embedded, DataDir: t.TempDir(), Port: -1},
		"no such port":        {URL: Embedded, DataDir: t.TempDir(), Port: 1 << 16},
		"no size":             {URL: Embedded, DataDir: t.TempDir(), MaxStore: -1},
		"no time":             {URL: Embedded, DataDir: t.TempDir(), Sync: -1},
		"certificate, no key": {URL: "nats://127.0.0.1:1", CertFile: "x"},
		"no such nkey seed":   {URL: "nats://127.0.0.1:1", NKeyFile: "/nonexistent"},
		"no such root":        {URL: "nats://127.0.0.1:1", CAFile: "/nonexistent"},
	} {
		if b, err := Open(testContext(t), cfg); err == nil {
			_ = b.Close()
			t.Errorf("%s: accepted", name)
		}
	}
}

// gate ends a context at the first line that has the words.
type gate struct {
	words  string
	cancel context.CancelFunc
	lines  atomic.Int64
}

func (g *gate) Write(line []byte) (int, error) {
	if strings.Contains(string(line), g.words) {
		g.lines.Add(1)
		g.cancel()
	}
	return len(line), nil
}

// While nothing answers, the log says what is waited for, without secrets.
func TestOpenTellsWhatItWaitsForAndGivesUpWithItsContext(t *testing.T) {
	dir := t.TempDir() // held by somebody who never gets a server up
	lock, err := tryLock(filepath.Join(dir, lockFile))
	if err != nil || lock == nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.release() }()
	for words, cfg := range map[string]Config{
		"address=nats://***@127.0.0.1:1 error": {URL: "nats://u:secret@127.0.0.1:1"},
		"cannot be joined":                     testConfig(t, dir),
	} {
		ctx, cancel := context.WithCancel(testContext(t))
		g := &gate{words: words, cancel: cancel}
		cfg.Log = slog.New(slog.NewTextHandler(g, nil))
		if b, err := Open(ctx, cfg); err == nil {
			_ = b.Close()
			t.Error("connected to nothing")
		} else if cfg.DataDir == "" && (errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "nats: ")) {
			t.Errorf("why is not said, or in the client's words: %v", err)
		}
		cancel()
		if g.lines.Load() != 1 {
			t.Errorf("%d lines with %q", g.lines.Load(), words)
		}
	}
}

// Who only joins says that nobody is there to be joined, and what to do, and not at each attempt.
func TestWhoOnlyJoinsSaysWhatItWaitsFor(t *testing.T) {
	fresh, left := t.TempDir(), t.TempDir()
	owner, err := Open(testContext(t), testConfig(t, left))
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	for dir, attempts := range map[string]int{fresh: 0, left: 1} { // of connections, which are said
		var log bytes.Buffer
		cfg := testConfig(t, dir)
		cfg.JoinOnly, cfg.Log = true, slog.New(slog.NewTextHandler(&log, nil))
		ctx, cancel := context.WithTimeout(testContext(t), 2500*time.Millisecond)
		b, err := Open(ctx, cfg)
		cancel()
		if err == nil {
			_ = b.Close()
			t.Fatal("joined nobody")
		}
		if !strings.Contains(err.Error(), "--nats") || !strings.Contains(err.Error(), dir) {
			t.Errorf("the error says not what to do: %v", err)
		}
		if n := strings.Count(log.String(), "--nats"); n != 1 {
			t.Errorf("%d lines say what is waited for, want 1:\n%s", n, log.String())
		}
		if n := strings.Count(log.String(), "no connection to NATS"); n != attempts {
			t.Errorf("%d lines of attempts, want %d:\n%s", n, attempts, log.String())
		}
	}
}
