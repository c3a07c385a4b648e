package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/obs"
)

const patience = time.Minute

// manager is a service manager's notify socket.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
	name string
}

func newManager(t *testing.T, abstract bool) *manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "n") //nolint:usetesting // a socket's path is at most 107 bytes long
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "s")
	if abstract {
		name = "@kvatlas-test" + name
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); _ = os.RemoveAll(dir) })
	return &manager{t, conn, name}
}

// next returns the lines of the next datagram.
func (m *manager) next() []string {
	m.t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		m.t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := m.conn.Read(b)
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.Split(string(b[:n]), "\n")
}

// until returns the first datagram that has the line.
func (m *manager) until(line string) []string {
	m.t.Helper()
	for {
		if got := m.next(); slices.Contains(got, line) {
			return got
		}
	}
}

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func ready() string { return "" }

func TestSystemdIsToldOfTheWholeLife(t *testing.T) {
	for _, abstract := range []bool{false, true} {
		m := newManager(t, abstract)
		var mu sync.Mutex
		why := "catching up\nslowly"
		s := newService(ServiceConfig{StopTimeout: time.Second}, slog.New(slog.DiscardHandler), func() string {
			mu.Lock()
			defer mu.Unlock()
			return why
		}, env("NOTIFY_SOCKET", m.name, "WATCHDOG_USEC", "20000", "WATCHDOG_PID", fmt.Sprint(os.Getpid())))
		s.Started(nil)
		if got := m.next(); !slices.Equal(got, []string{"READY=1", "STATUS=not ready: catching up; slowly"}) {
			t.Errorf("first %q", got)
		}
		if got := m.next(); !slices.Equal(got, []string{"WATCHDOG=1", "STATUS=not ready: catching up; slowly"}) {
			t.Errorf("then %q", got)
		}
		mu.Lock()
		why = ""
		mu.Unlock()
		if got := m.until("STATUS=ready"); got[0] != "WATCHDOG=1" {
			t.Errorf("%q", got)
		}
		stopped := make(chan error, 1)
		goOn := make(chan struct{})
		go func() {
			stopped <- s.Stop(func() {}, Step{"wait", func(context.Context) error { <-goOn; return nil }})
		}()
		if got := m.until("STOPPING=1"); !slices.Contains(got, "EXTEND_TIMEOUT_USEC=11000000") {
			t.Errorf("%q", got)
		}
		mu.Lock() // the state is not asked for any more, and the signs of life go on
		if got := m.next(); !slices.Contains(got, "WATCHDOG=1") {
			t.Errorf("%q", got)
		}
		if got := m.next(); !slices.Equal(got, []string{"WATCHDOG=1"}) {
			t.Errorf("%q", got)
		}
		mu.Unlock()
		close(goOn)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	}
}

func TestAProgramThatHangsFallsSilent(t *testing.T) {
	m := newManager(t, false)
	s := newService(ServiceConfig{}, slog.New(slog.DiscardHandler), ready, env("NOTIFY_SOCKET", m.name, "WATCHDOG_USEC", "2000"))
	var hang atomic.Bool
	hangs, release := make(chan struct{}), make(chan struct{})
	var ill atomic.Bool
	s.Started(func(context.Context) error {
		if hang.CompareAndSwap(true, false) {
			close(hangs)
			<-release
		}
		if ill.Load() {
			return errors.New("ill")
		}
		return nil
	})
	m.until("WATCHDOG=1")
	hang.Store(true)
	<-hangs
	// What was sent before is in the socket, a few datagrams; a read whose
	// deadline has passed would not see it. Then there is silence.
	read := func() (int, error) {
		if err := m.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		return m.conn.Read(make([]byte, 4096))
	}
	n, err := read()
	for range 1000 {
		if err != nil {
			break
		}
		n, err = read()
	}
	if err == nil {
		t.Errorf("%d bytes from a program that hangs", n)
	}
	ill.Store(true) // an error is as good as silence
	close(release)
	if err := m.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := m.conn.Read(make([]byte, 4096)); err == nil {
		t.Errorf("%d bytes from a program that is ill", n)
	}
	ill.Store(false)
	m.until("WATCHDOG=1")
	if err := s.Stop(func() {}); err != nil {
		t.Error(err)
	}
}

func TestWhatSystemdDoesNotAskForIsNotSent(t *testing.T) {
	m := newManager(t, false)
	for _, e := range [][]string{
		{"NOTIFY_SOCKET", m.name}, {"NOTIFY_SOCKET", m.name, "WATCHDOG_USEC", "20000", "WATCHDOG_PID", "1"},
		{"NOTIFY_SOCKET", m.name, "WATCHDOG_USEC", "soon"}, {"NOTIFY_SOCKET", m.name, "WATCHDOG_USEC", "-5"},
	} {
		if n := newNotifier(env(e...), slog.New(slog.DiscardHandler)); n.watchdog != 0 {
			t.Errorf("%v: a watchdog every %v", e, n.watchdog)
		}
	}
	newNotifier(env(), nil).send("READY=1") // nobody is told, and nothing fails
	var log bytes.Buffer
	for _, name := range []string{"/nonexistent/socket", "vsock:2:1234"} {
		log.Reset()
		n := newNotifier(env("NOTIFY_SOCKET", name), slog.New(slog.NewTextHandler(&log, nil)))
		n.send("READY=1")
		n.send("WATCHDOG=1")
		if strings.Count(log.String(), "NOTIFY_SOCKET") != 1 {
			t.Errorf("%s: logged %q", name, log.String())
		}
	}
}

// The order of the end, in time that is exact: unready, the delay, the steps one
// after the other with the time that is theirs, whatever fails among them.
func TestTheEndIsInOrderAndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "address")
		s := newService(ServiceConfig{AddressFile: file, DrainDelay: 5 * time.Second, StopTimeout: 20 * time.Second},
			slog.New(slog.DiscardHandler), ready, env())
		if err := s.Listening("127.0.0.1:1"); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(file); err != nil || string(data) != "127.0.0.1:1\n" {
			t.Errorf("%v: %q", err, data)
		}
		begun := time.Now()
		var mu sync.Mutex
		var did []string
		note := func(name string) {
			mu.Lock()
			defer mu.Unlock()
			did = append(did, fmt.Sprintf("%s %v", name, time.Since(begun)))
		}
		forever := make(chan struct{})
		err := s.Stop(func() { note("unready") },
			Step{"requests", func(ctx context.Context) error {
				note("requests")
				<-ctx.Done() // they take all of their time
				return ctx.Err()
			}},
			Step{"snapshot", func(ctx context.Context) error {
				note("snapshot")
				<-time.After(time.Second)
				return ctx.Err()
			}},
			Step{"hang", func(context.Context) error { note("hang"); <-forever; return nil }},
			Step{"broker", func(context.Context) error { note("broker"); return errors.New("gone") }},
		)
		mu.Lock()
		defer mu.Unlock()
		want := "unready 0s, requests 5s, snapshot 20s, hang 21s, broker 30s"
		if got := strings.Join(did, ", "); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		for _, part := range []string{"requests: context deadline exceeded", "hang: not done in time", "broker: gone"} {
			if !strings.Contains(fmt.Sprint(err), part) {
				t.Errorf("no %q in %v", part, err)
			}
		}
		if strings.Contains(fmt.Sprint(err), "snapshot") {
			t.Errorf("the snapshot had time: %v", err)
		}
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the address file is there: %v", err)
		}
		close(forever)
	})
}

func TestReadinessIsAMetric(t *testing.T) {
	m := obs.NewMetrics()
	why := "not yet"
	s := NewService(ServiceConfig{}, slog.New(slog.DiscardHandler), m, func() string { return why })
	is := func(want string) {
		t.Helper()
		var b bytes.Buffer
		m.WritePrometheus(&b)
		if !strings.Contains(b.String(), "\nkvatlas_ready "+want+"\n") {
			t.Errorf("not %s", want)
		}
	}
	is("0")
	why = ""
	is("1")
	if err := s.Stop(func() { is("0") }); err != nil {
		t.Error(err)
	}
}

func TestReplicaNamesHaveTheirCharacters(t *testing.T) {
	name := ReplicaName()
	if name != ReplicaName() || !strings.HasSuffix(name, fmt.Sprint("-", os.Getpid())) || strings.ContainsAny(name, ". /*>") {
		t.Error(name)
	}
}

// The pods of a deployment have names of up to 63 characters that differ in the last ones.
func TestLongHostNamesAreToldApart(t *testing.T) {
	const pod = "kvatlas-production-inference-cluster-kvindexer-6d5b7f9c88-"
	a, b := replicaName(pod+"x7x2k", 1), replicaName(pod+"9qvzt", 1)
	if a == b || !strings.HasPrefix(a, pod[:30]) {
		t.Errorf("the replicas of two pods are %s and %s", a, b)
	}
	// A library adds nine characters for one of several replicas.
	if longest := replicaName(pod+"x7x2k", 4194304); len(longest) > 64-9 {
		t.Errorf("%d characters: %s", len(longest), longest)
	}
	if name := replicaName("node-1.example.com", 77); name != "node-1_example_com-77" {
		t.Error(name)
	}
}
