package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// violations keeps what a NATS server says of permissions.
type violations struct {
	mu   sync.Mutex
	list []string
}

func (v *violations) Noticef(string, ...any)    {}
func (v *violations) Debugf(string, ...any)     {}
func (v *violations) Tracef(string, ...any)     {}
func (v *violations) Warnf(f string, a ...any)  { v.Errorf(f, a...) }
func (v *violations) Fatalf(f string, a ...any) { v.Errorf(f, a...) }
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

// documentedServer runs the configuration of docs/security.md.
func documentedServer(t *testing.T) (address string, v *violations) {
	t.Helper()
	text, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(text), "```\njetstream:")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatal("docs/security.md has no configuration")
	}
	dir := t.TempDir()
	block = strings.Replace("jetstream:"+block, "/var/lib/nats", filepath.Join(dir, "js"), 1)
	path := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(path, []byte(block), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"PUBLISHER", "INDEXER", "ROUTER"} {
		t.Setenv(user+"_PASSWORD", "secret")
	}
	o, err := server.ProcessConfigFile(path)
	if err != nil {
		t.Fatal(err)
	}
	o.Host, o.Port, o.NoSigs = "127.0.0.1", server.RANDOM_PORT, true
	srv, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	v = new(violations)
	srv.SetLoggerV2(v, false, false, false)
	go srv.Start() // ends with Shutdown
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("the NATS server does not start")
	}
	return srv.Addr().String(), v
}

func connectAs(t *testing.T, address, user string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect("nats://"+address, nats.UserInfo(user, "secret"), nats.Timeout(time.Minute),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// TestTheDocumentedPermissionsSuffice runs a publisher and an indexer with the
// permissions of docs/security.md: everything works, the server refuses
// nothing that they ask for, and refuses what they have no need of.
func TestTheDocumentedPermissionsSuffice(t *testing.T) {
	address, refused := documentedServer(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("refused: %q", slices.Compact(refused.take()))
		}
	})
	pub := connectAs(t, address, "publisher-7")
	w := registry.Worker{ID: 7, Model: "m", BlockSize: 16, Ranks: []uint32{0}, Transport: registry.JetStream, HashScheme: registry.Scheme(16)}
	p, err := publish.Open(t.Context(), publish.Config{Conn: pub, Space: w.Space(), Worker: w.ID, Heartbeat: 50 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	a, err := registry.Register(t.Context(), w, registry.AnnounceConfig{Conn: pub, Lease: time.Second, Positions: p.Positions, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	store := func(hashes ...uint64) {
		t.Helper()
		if err := p.Publish(t.Context(), event.Event{Kind: event.Stored, Engine: hashes, Local: hashes}); err != nil {
			t.Fatal(err)
		}
	}
	store(1, 2, 3)
	x := start(t, "--nats=nats://indexer:secret@"+address, "--snapshot-interval=1s")
	const find = `{"model":"m","hashes":[1,2,3,4]}`
	holds := func(want string) { t.Helper(); x.answers("POST", "/v1/find_matches", find, 200, want) }
	holds(`"longest":3`)
	store(1, 2, 3, 4)
	holds(`"longest":4`)
	// The end takes a snapshot, and the next start is from it.
	x.signal(syscall.SIGTERM)
	if code := x.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
	x = start(t, "--nats=nats://indexer:secret@"+address)
	holds(`"longest":4`)
	// The publisher ends first: one that lives is asked for all it holds again.
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := a.Close(t.Context()); err != nil { // its blocks leave the index
		t.Error(err)
	}
	holds(`"workers":[]`)
	if list := refused.take(); len(list) > 0 {
		t.Errorf("the documented permissions do not suffice: %q", slices.Compact(list))
	}

	denied(t, pub, refused, "kvatlas.default.x.8", "kvatlas.default.x.8.live", "$KV.kvatlas_default_registry.drain.7", "$KV.kvatlas_default_registry.lease.x.8",
		"$JS.API.STREAM.PURGE.KV_kvatlas_default_registry", "$JS.API.STREAM.DELETE.KV_kvatlas_default_registry", "$JS.API.CONSUMER.CREATE.KV_kvatlas_default_registry")
	indexer := connectAs(t, address, "indexer")
	denied(t, indexer, refused, "kvatlas.default.x.7", "kvatlas.default.x.7.live", "$JS.API.STREAM.DELETE.KV_kvatlas_default_registry", "other")
	router := connectAs(t, address, "router")
	denied(t, router, refused, "kvatlas.default.x.7", "kvatlas.default.x.7.live", "$JS.API.STREAM.DELETE.kvatlas_default_x")
	for user, subject := range map[*nats.Conn]string{pub: "kvatlas.default.>", indexer: "kvatlas-route.default.>", router: ">"} {
		if _, err := user.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		seen(t, user, refused, subject)
	}
}

// denied publishes on the subjects, each of which the server is to refuse.
func denied(t *testing.T, nc *nats.Conn, v *violations, subjects ...string) {
	t.Helper()
	for _, subject := range subjects {
		if err := nc.Publish(subject, nil); err != nil {
			t.Fatal(err)
		}
		seen(t, nc, v, subject)
	}
}

// seen checks that the server has refused the subject.
func seen(t *testing.T, nc *nats.Conn, v *violations, subject string) {
	t.Helper()
	if err := nc.FlushTimeout(time.Minute); err != nil {
		t.Fatal(err)
	}
	if list := v.take(); !strings.Contains(strings.Join(list, "\n"), subject) {
		t.Errorf("%s is allowed: %q", subject, list)
	}
}
