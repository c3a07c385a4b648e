package stream

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/porttest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// A new stream sets little aside, so that those of many models fit beside each
// other, and grows as it fills up to its setting or what the server has room for.
func TestStreamsBeginSmallAndGrow(t *testing.T) {
	b, err := broker.Open(testContext(t), broker.Config{
		URL: broker.Embedded, DataDir: t.TempDir(), MaxStore: 48 << 20, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	js, err := jetstream.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	space := func(i int) event.Space { return event.Space{Model: fmt.Sprintf("m%d", i), BlockSize: 16} }
	for i := range 10 { // with their MaxBytes there is room for one
		if _, err := Ensure(testContext(t), js, "ns", space(i), Config{MaxBytes: 48 << 20, FirstBytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
	}
	name := Name("ns", space(0))
	info := func() Info {
		i, err := Get(testContext(t), js, name)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	if i := info(); i.Size != 1<<20 || i.MaxBytes != 48<<20 {
		t.Fatalf("%+v", i)
	}
	message := make([]byte, 256<<10)
	for full := 0; full < 2; {
		_, err := js.Publish(testContext(t), Subject("ns", space(0), 1), message)
		if err == nil {
			full = 0
			continue
		}
		if !IsFull(err) {
			t.Fatal(err)
		}
		full++
		before := info().Size
		grown, err := Grow(testContext(t), js, name)
		switch after := info().Size; {
		case grown && (err != nil || after != 2*before):
			t.Fatalf("from %d to %d bytes: %v", before, after, err)
		case !grown && err == nil:
			t.Fatalf("%d bytes are all", after)
		case !grown && (after != before || !isCode(err, noRoom)):
			t.Fatalf("from %d to %d bytes: %v", before, after, err)
		case !grown && after != 32<<20: // nine others have 1 MiB each
			t.Fatalf("no room beyond %d bytes", after)
		}
	}
	if _, err := Ensure(testContext(t), js, "ns", space(11), Config{FirstBytes: 40 << 20}); err == nil || !strings.Contains(err.Error(), "lower the stream's size") {
		t.Errorf("more than there is: %v", err)
	}
	// What has room, or is as large as it may be, stays as it is.
	if ok, err := Grow(testContext(t), js, Name("ns", space(1))); !ok || err != nil {
		t.Errorf("an empty stream: %v, %v", ok, err)
	}
	small := event.Space{Model: "small", BlockSize: 16}
	if _, err := Ensure(testContext(t), js, "ns", small, Config{MaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = js.Publish(testContext(t), Subject("ns", small, 1), message)
	}
	if ok, err := Grow(testContext(t), js, Name("ns", small)); ok || err != nil {
		t.Errorf("a stream of its largest size: %v, %v", ok, err)
	}
}

// Copies: one on a server alone, three in a cluster of three, unless told.
func TestCopiesInACluster(t *testing.T) {
	js := startServer(t)
	if _, err := Ensure(testContext(t), js, "prod", testSpace, small); err != nil {
		t.Fatal(err)
	}
	if c := config(t, js); c.Replicas != 1 {
		t.Errorf("%d copies on one server", c.Replicas)
	}
	servers := startCluster(t)
	nc, err := nats.Connect(servers[0].ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, func() error {
		_, err := Ensure(testContext(t), js, "prod", testSpace, small)
		return err
	})
	if c := config(t, js); c.Replicas != 3 {
		t.Errorf("%d copies in a cluster of three", c.Replicas)
	}
	other := event.Space{Model: "other", BlockSize: 16}
	one := small
	one.Replicas = 1
	if _, err := Ensure(testContext(t), js, "prod", other, one); err != nil {
		t.Fatal(err)
	}
	// With one of three away nobody settles for less.
	servers[2].Shutdown()
	servers[2].WaitForShutdown()
	waittest.Until(t, func() error {
		third := event.Space{Model: "third", BlockSize: 16}
		if _, err = Ensure(testContext(t), js, "prod", third, small); err == nil {
			info, err := Get(testContext(t), js, Name("prod", third))
			if err != nil {
				return err
			}
			s, err := js.Stream(testContext(t), info.Name)
			if err != nil {
				return err
			}
			if n := s.CachedInfo().Config.Replicas; n != 3 {
				t.Fatalf("%d copies with one server of three away", n)
			}
		}
		return nil // refused for now, or made of three: both are right
	})
}

func startCluster(t *testing.T) []*server.Server {
	t.Helper()
	// A server of a cluster with JetStream needs the others' addresses to start.
	const n = 3
	first := porttest.Free(t, n)
	var routes []*url.URL
	for i := range n {
		routes = append(routes, &url.URL{Scheme: "nats", Host: porttest.Local(first + i)})
	}
	var servers []*server.Server
	for i := range n {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: t.TempDir(), Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: first + i}, Routes: routes,
		})
		if err != nil {
			t.Fatal(err)
		}
		go s.Start() // ends with Shutdown
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
		servers = append(servers, s)
	}
	waittest.For(t, "the cluster has a leader", func() bool {
		for _, s := range servers {
			if s.JetStreamIsLeader() {
				return len(s.JetStreamClusterPeers()) == len(servers)
			}
		}
		return false
	})
	return servers
}

// A stream is also made when the server cannot make its directory at first, as happens in the
// moment after it answered that the only stream was deleted.
func TestAStreamIsMadeAgainWhereItsDirectoryWasNotToBeMade(t *testing.T) {
	dir := t.TempDir()
	b, err := broker.Open(testContext(t), broker.Config{URL: broker.Embedded, DataDir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	js, err := jetstream.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(testContext(t), js, "prod", event.Space{Model: "other", BlockSize: 16}, small); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	// The server says no because of this, and takes it away.
	if err := os.WriteFile(filepath.Join(found[0], Name("prod", testSpace)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(testContext(t), js, "prod", testSpace, small); err != nil {
		t.Error(err)
	}
}

// unheard is a server of a cluster that has not heard of a bucket yet that another one has made.
type unheard struct {
	jetstream.JetStream
	times int
}

func (u *unheard) KeyValue(ctx context.Context, bucket string) (jetstream.KeyValue, error) {
	if u.times--; u.times >= 0 {
		return nil, jetstream.ErrBucketNotFound
	}
	return u.JetStream.KeyValue(ctx, bucket)
}

// A bucket that is made by several at once is there for each of them once it is opened.
func TestABucketThatNotAllServersHaveHeardOf(t *testing.T) {
	js := startServer(t)
	for _, description := range []string{"made", "made by another"} {
		u := &unheard{js, 4}
		if _, err := OpenKV(testContext(t), u, jetstream.KeyValueConfig{Bucket: "b", Description: description}); err != nil || u.times >= 0 {
			t.Errorf("%s: it is opened before it is heard of, %v", description, err)
		}
	}
}
