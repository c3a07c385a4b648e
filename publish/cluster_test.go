package publish

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// asServer makes the test binary a NATS server of a cluster, so that one can be killed:
// its number, the addresses of the cluster, and where it stores.
const asServer = "RUN_AS_NATS_SERVER"

func TestMain(m *testing.M) {
	if args := os.Getenv(asServer); args != "" {
		runServer(strings.Split(args, " "))
		return
	}
	os.Exit(m.Run())
}

func runServer(args []string) {
	var routes []*url.URL
	for _, host := range args[2:5] {
		routes = append(routes, &url.URL{Scheme: "nats", Host: host})
	}
	var number, port, client int
	_, err := fmt.Sscan(args[0]+" "+routes[int(args[0][0]-'0')].Port()+" "+args[5], &number, &port, &client)
	if err != nil {
		panic(err)
	}
	s, err := server.NewServer(&server.Options{
		ServerName: fmt.Sprintf("n%d", number), Host: "127.0.0.1", Port: client, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: args[1], Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: port}, Routes: routes,
	})
	if err != nil {
		panic(err)
	}
	s.Start()
	select {} // until it is killed
}

// The leader of a stream's three copies is killed. Publishing goes on as soon as there is
// another one, not when the acknowledgements have been waited for; nothing is lost.
func TestPublishingGoesOnWithTheNextLeader(t *testing.T) {
	var hosts, clients []string
	for i := range 6 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if i < 3 {
			hosts = append(hosts, l.Addr().String())
		} else {
			clients = append(clients, l.Addr().String())
		}
		_ = l.Close()
	}
	var servers []*exec.Cmd
	for i := range 3 {
		cmd := exec.Command(os.Args[0])
		_, port, err := net.SplitHostPort(clients[i])
		if err != nil {
			t.Fatal(err)
		}
		cmd.Env = []string{fmt.Sprintf("%s=%d %s %s %s", asServer, i, t.TempDir(), strings.Join(hosts, " "), port)}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // it may have been
			_ = cmd.Wait()
		})
		servers = append(servers, cmd)
	}
	nc, err := nats.Connect("nats://"+strings.Join(clients, ",nats://"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond), nats.DontRandomize())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	sp := event.Space{Model: "m", BlockSize: 16}
	waittest.Until(t, func() error {
		_, err := stream.Ensure(t.Context(), js, "default", sp, StreamConfig{MaxBytes: 16 << 20, Replicas: 3})
		return err
	})
	leader := func() string {
		if s, err := js.Stream(t.Context(), stream.Name("default", sp)); err == nil && s.CachedInfo().Cluster != nil {
			return s.CachedInfo().Cluster.Leader
		}
		return ""
	}
	var was string
	waittest.For(t, "the stream has a leader", func() bool { was = leader(); return was != "" })
	// The publisher stays connected: to another server than the leader.
	own := clients[(int(was[1]-'0')+1)%3]
	conn, err := nats.Connect("nats://"+own, nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	cfg := Config{Conn: conn, Space: sp, Worker: 7, Stream: StreamConfig{MaxBytes: 16 << 20, Replicas: 3}, Log: slog.New(slog.DiscardHandler), Heartbeat: -1}
	p, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	next := uint64(0)
	store := func() {
		t.Helper()
		next++
		if err := p.Stored(t.Context(), 0, event.Device, Root(), []uint64{next}, []uint64{next}); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		store()
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := servers[was[1]-'0'].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		store()
	}
	flushed := make(chan time.Time, 1)
	go func() {
		if err := p.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		flushed <- time.Now()
	}()
	if js, err = jetstream.New(conn); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	waittest.For(t, "the stream takes messages", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := js.Publish(ctx, stream.Subject("default", sp, 8), []byte("probe"), jetstream.WithRetryAttempts(0))
		return err == nil
	})
	elected := time.Now()
	done := <-flushed
	t.Logf("the stream takes messages %v after the crash, all is published %v later", elected.Sub(killed), done.Sub(elected))
	if late := done.Sub(elected); late > 1500*time.Millisecond {
		t.Errorf("publishing goes on %v after the stream takes messages", late)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
