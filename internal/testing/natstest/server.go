package natstest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// patience is how long a test waits for something that is sure to happen.
const patience = time.Minute

// password is every user's.
const password = "secret"

// Server is a server with the documented permissions. It is safe for concurrent
// use.
type Server struct {
	t       testing.TB
	address string
	refused violations
}

// Start runs a server until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	dir := t.TempDir()
	block := strings.Replace(documented(t), "/var/lib/nats", filepath.Join(dir, "js"), 1)
	path := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(path, []byte(block), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"PUBLISHER", "INDEXER", "ROUTER", "KVCTL"} {
		t.Setenv(user+"_PASSWORD", password)
	}
	o, err := server.ProcessConfigFile(path)
	if err != nil {
		t.Fatal(err)
	}
	o.Host, o.Port, o.NoSigs = "127.0.0.1", server.RANDOM_PORT, true
	o.JetStreamMaxStore = room
	srv, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t}
	srv.SetLoggerV2(&s.refused, false, false, false)
	go srv.Start() // ends with Shutdown
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	if !srv.ReadyForConnections(patience) {
		t.Fatal("the NATS server does not start")
	}
	s.address = srv.Addr().String()
	return s
}

// documented returns the configuration in docs/security.md.
func documented(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("the test does not run in the module")
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(text), "```\njetstream:")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatal("docs/security.md has no configuration")
	}
	return "jetstream:" + block
}

// URL returns the server's address with the user's credentials.
func (s *Server) URL(user string) string {
	return "nats://" + user + ":" + password + "@" + s.address
}

// Connect returns a connection of the user until the test ends.
func (s *Server) Connect(user string) *nats.Conn {
	s.t.Helper()
	nc, err := nats.Connect(s.URL(user), nats.Timeout(patience), nats.MaxReconnects(-1),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}

// Sufficed fails the test if the server has refused anything.
func (s *Server) Sufficed() {
	s.t.Helper()
	if list := s.refused.take(); len(list) > 0 {
		s.t.Errorf("the documented permissions do not suffice: %q", slices.Compact(list))
	}
}

// Denied publishes on the subjects, each of which the server is to refuse.
func (s *Server) Denied(nc *nats.Conn, subjects ...string) {
	s.t.Helper()
	for _, subject := range subjects {
		if err := nc.Publish(subject, nil); err != nil {
			s.t.Fatal(err)
		}
		s.seen(nc, subject)
	}
}

// Deaf subscribes to the subjects, each of which the server is to refuse.
func (s *Server) Deaf(nc *nats.Conn, subjects ...string) {
	s.t.Helper()
	for _, subject := range subjects {
		if _, err := nc.SubscribeSync(subject); err != nil {
			s.t.Fatal(err)
		}
		s.seen(nc, subject)
	}
}

// seen checks that the server has refused the subject.
func (s *Server) seen(nc *nats.Conn, subject string) {
	s.t.Helper()
	if err := nc.FlushTimeout(patience); err != nil {
		s.t.Fatal(err)
	}
	if list := s.refused.take(); !strings.Contains(strings.Join(list, "\n"), `"`+subject+`"`) {
		s.t.Errorf("%s is allowed: %q", subject, list)
	}
}

// violations keeps what a server says of permissions.
type violations struct {
	mu   sync.Mutex
	list []string
}

// Noticef implements server.Logger.
func (v *violations) Noticef(string, ...any) {}

// Debugf implements server.Logger.
func (v *violations) Debugf(string, ...any) {}

// Tracef implements server.Logger.
func (v *violations) Tracef(string, ...any) {}

// Warnf implements server.Logger.
func (v *violations) Warnf(f string, a ...any) { v.Errorf(f, a...) }

// Fatalf implements server.Logger.
func (v *violations) Fatalf(f string, a ...any) { v.Errorf(f, a...) }

// Errorf implements server.Logger.
func (v *violations) Errorf(f string, a ...any) {
	if text := fmt.Sprintf(f, a...); strings.Contains(text, "iolation") {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.list = append(v.list, text)
	}
}

func (v *violations) take() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := v.list
	v.list = nil
	return list
}
