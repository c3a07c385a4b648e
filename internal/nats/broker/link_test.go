package broker

import (
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/internal/race"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// secured runs a server that wants the password, on the port.
func secured(t *testing.T, port int, password string) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: port, Username: "u", Password: password, NoLog: true, NoSigs: true, JetStream: true, StoreDir: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start() // ends with Shutdown
	t.Cleanup(s.Shutdown)
	if !s.ReadyForConnections(waittest.Patience) {
		t.Fatal("the server does not start")
	}
	return s
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// half is a proxy whose connections can fall silent: nothing passes any more,
// and neither end is told.
type half struct {
	net.Listener
	made  atomic.Int64 // connections
	era   atomic.Int64 // connections of earlier ones are silent
	ended chan struct{}
}

// newHalf returns a proxy before the address.
func newHalf(t *testing.T, to net.Addr) *half {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &half{Listener: l, ended: make(chan struct{})}
	t.Cleanup(func() { close(h.ended); _ = l.Close() })
	go h.serve(to.String()) // ends with its listener
	return h
}

func (h *half) url() string { return "nats://u:one@" + h.Addr().String() }

func (h *half) serve(to string) {
	for {
		c, err := h.Accept()
		if err != nil {
			return
		}
		h.made.Add(1)
		s, err := net.Dial("tcp", to)
		if err != nil {
			_ = c.Close()
			continue
		}
		era := h.era.Load()
		pass := func(dst, src net.Conn) {
			defer func() { _, _ = src.Close(), dst.Close() }()
			buf := make([]byte, 4096)
			for {
				n, err := src.Read(buf)
				if h.era.Load() != era {
					<-h.ended
				}
				if err != nil {
					return
				}
				if _, err := dst.Write(buf[:n]); err != nil {
					return
				}
			}
		}
		go pass(s, c)
		go pass(c, s)
	}
}

// Credentials that a server takes no more end the connection, and not for good:
// once it takes them again, the connection is back.
func TestRevokedCredentialsThatComeBack(t *testing.T) {
	s := secured(t, server.RANDOM_PORT, "one")
	port := s.Addr().(*net.TCPAddr).Port
	h := newHalf(t, s.Addr())
	said := &gate{words: "does not take the credentials", cancel: func() {}}
	b := open(t, Config{URL: h.url(), Log: slog.New(slog.NewTextHandler(said, nil))})
	defer closeBroker(t, b)
	roundTrip(t, b)
	change := func(password string) {
		s.Shutdown()
		s.WaitForShutdown()
		s = secured(t, port, password)
	}
	began := time.Now()
	change("other")
	before := h.made.Load()
	waittest.For(t, "the server has refused it again and again", func() bool {
		return h.made.Load() > before+3 && errors.Is(b.Conn().LastError(), nats.ErrAuthorization)
	})
	change("one")
	waittest.For(t, "the connection is back", func() bool { return b.Conn().Status() == nats.CONNECTED })
	roundTrip(t, b)
	if n := said.lines.Load(); n == 0 || n > 1+int64(time.Since(began)/tellEvery) {
		t.Errorf("said %d times in %v", n, time.Since(began))
	}
}

// nowhere is a network in which nobody is reached.
type nowhere struct{}

// Dial implements nats.CustomDialer.
func (nowhere) Dial(string, string) (net.Conn, error) { return nil, errors.New("nobody is there") }

// Who ends while the server is away does not wait for it: nothing is there to be sent.
func TestNobodyWaitsAtTheEndForAServerThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nc, err := nats.Connect("nats://127.0.0.1:1", nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1), nats.SetCustomDialer(nowhere{}))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := (&Broker{nc: nc}).Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("waited for %v", took)
		}
	})
}

// A connection on which nothing comes any more, and which nobody has closed, is
// noticed by its pings and made anew.
func TestAHalfOpenConnectionIsMadeAnew(t *testing.T) {
	s := secured(t, server.RANDOM_PORT, "one")
	h := newHalf(t, s.Addr())
	b := open(t, Config{URL: h.url(), Log: quiet(), pingEvery: 20 * time.Millisecond})
	defer closeBroker(t, b)
	roundTrip(t, b)
	h.era.Add(1)
	waittest.For(t, "the connection is made anew", func() bool { return b.Conn().Stats().Reconnects > 0 && b.Conn().Status() == nats.CONNECTED })
	roundTrip(t, b)
}

// The embedded server has written to the disk what it acknowledges, or does so
// within half a second, as it is told.
func TestTheEmbeddedServerSyncs(t *testing.T) {
	b := open(t, testConfig(t, t.TempDir()))
	defer closeBroker(t, b)
	if c := b.embedded.srv.JetStreamConfig(); c.SyncAlways || c.SyncInterval != usualSync(race.Enabled) || usualSync(false) != defaultSync {
		t.Errorf("%+v", c)
	}
	cfg := testConfig(t, t.TempDir())
	cfg.SyncAlways = true
	always := open(t, cfg)
	defer closeBroker(t, always)
	if c := always.embedded.srv.JetStreamConfig(); !c.SyncAlways {
		t.Errorf("%+v", c)
	}
}
