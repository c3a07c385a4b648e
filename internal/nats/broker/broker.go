package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// Embedded is the URL that asks for a server inside the process.
const Embedded = "embedded"

// None asks for no NATS, where a program can do without.
const None = "none"

// tellEvery is how often the log says that a connection is waited for.
const tellEvery = 10 * time.Second

// dialTimeout bounds one attempt to connect.
const dialTimeout = 5 * time.Second

// flushWait bounds how long Close waits for the server to have all that was sent.
const flushWait = 5 * time.Second

// Config says which NATS to use. The zero value is not usable: URL is needed,
// and DataDir with an embedded server.
type Config struct {
	// URL is "embedded", or one or more server addresses
	// "nats://host:port[,nats://…]" (also tls:// and ws://).
	URL string
	// Name is shown in the server's connection list; empty means "kvatlas".
	Name string

	// DataDir holds an embedded server's messages, address and credentials.
	DataDir string
	// Port is where an embedded server listens on 127.0.0.1; 0 means the port
	// it had before if that is free, else one that the system chooses.
	Port int
	// MaxStore bounds the bytes of all streams of an embedded server; 0 leaves
	// it to the server (three quarters of the free disk space).
	MaxStore int64

	// Replicas is for what is made over the connection: copies in the cluster of
	// each stream and bucket; 0 leaves it to the cluster (stream.Copies).
	Replicas int

	// Sync is how often an embedded server syncs what it has stored to the disk; 0
	// means every 500 ms. SyncAlways has it sync each message before it
	// acknowledges it.
	Sync       time.Duration
	SyncAlways bool

	// JoinOnly never runs the data directory's server: it waits for the process
	// that does, for programs that are too short-lived to be it.
	JoinOnly bool

	// Credentials for the user's cluster; each is the path of a file, and
	// empty means unused.
	CredsFile string // user JWT and seed
	NKeyFile  string // nkey seed
	CAFile    string // root certificates, PEM
	CertFile  string // client certificate, PEM, together with KeyFile
	KeyFile   string

	// pingEvery is how often a silent connection is tried; 0 means 5 s. Tests
	// set it.
	pingEvery time.Duration

	// waiting says what is waited for; nil is one of the connection's own.
	waiting *obs.Limited

	// Log receives connection changes and the embedded server's warnings; nil
	// means slog.Default().
	Log *slog.Logger
}

// Broker is a process's access to NATS.
type Broker struct {
	nc       *nats.Conn
	embedded *embedded // nil when the server is not in this process
}

// Open gets the process its NATS and waits until the connection stands or ctx
// ends. With URL "embedded" it runs the server of the data directory, or joins
// the process that runs it.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Name == "" {
		cfg.Name = "kvatlas"
	}
	switch {
	case cfg.URL == Embedded:
		return openEmbedded(ctx, cfg)
	case cfg.URL == "":
		return nil, errors.New("broker: no NATS URL: give \"embedded\" or nats://host:port")
	}
	if err := checkURL(cfg.URL); err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	opts, err := clusterOptions(cfg)
	if err != nil {
		return nil, err
	}
	nc, err := connect(ctx, cfg, cfg.URL, opts...)
	if err != nil {
		return nil, err
	}
	return &Broker{nc: nc}, nil
}

// Conn returns the connection. It lives until Close.
func (b *Broker) Conn() *nats.Conn { return b.nc }

// Owner reports whether the server runs in this process.
func (b *Broker) Owner() bool { return b.embedded != nil }

// Address returns the server's URL without credentials.
func (b *Broker) Address() string { return b.nc.ConnectedUrlRedacted() }

// Close sends what the connection still holds, closes it, and shuts an
// embedded server down, waiting until its files are closed.
func (b *Broker) Close() (err error) {
	if b.nc.IsConnected() { // else nothing can be waiting, and a flush waits for a server
		err = b.nc.FlushTimeout(flushWait)
	}
	if errors.Is(err, nats.ErrConnectionClosed) || !b.nc.IsConnected() {
		err = nil // the connection ended meanwhile
	}
	b.nc.Close()
	if b.embedded != nil {
		err = errors.Join(err, b.embedded.close())
	}
	return err
}

// clusterOptions turns the files that cfg names into options.
func clusterOptions(cfg Config) ([]nats.Option, error) {
	var opts []nats.Option
	if cfg.CredsFile != "" {
		opts = append(opts, nats.UserCredentials(cfg.CredsFile))
	}
	if cfg.NKeyFile != "" {
		o, err := nats.NkeyOptionFromSeed(cfg.NKeyFile)
		if err != nil {
			return nil, fmt.Errorf("broker: nkey seed %s: %w", cfg.NKeyFile, err)
		}
		opts = append(opts, o)
	}
	if cfg.CAFile != "" {
		opts = append(opts, nats.RootCAs(cfg.CAFile))
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, errors.New("broker: a client certificate needs both a certificate file and a key file")
	}
	if cfg.CertFile != "" {
		opts = append(opts, nats.ClientCert(cfg.CertFile, cfg.KeyFile))
	}
	return opts, nil
}

// connect dials url and waits until the connection stands or ctx ends. A
// refusal of the credentials ends the wait: waiting would not change it.
func connect(ctx context.Context, cfg Config, url string, extra ...nats.Option) (*nats.Conn, error) {
	log := cfg.Log
	waiting := cfg.waiting
	if waiting == nil {
		waiting = obs.NewLimited(log, tellEvery, nil)
	}
	address := conf.HideCredentials(url)
	refused := make(chan error, 1)
	var last atomic.Pointer[error] // why the last attempt failed, which the client forgets
	opts := append([]nats.Option{
		nats.Name(cfg.Name),
		nats.Timeout(dialTimeout),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), // a credential rotation must not end the connection for good
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 400*time.Millisecond),
		// No hidden queue: whoever publishes has its own bounded one and has
		// to know what was sent.
		nats.ReconnectBufSize(-1),
		// A half-open connection is noticed after two missed pings. The
		// client's default is two minutes a ping.
		nats.PingInterval(cmp.Or(cfg.pingEvery, 5*time.Second)),
		nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("disconnected from NATS, reconnecting", "error", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			log.Info("reconnected to NATS", "server", nc.ConnectedUrlRedacted())
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			last.Store(&err) // before it is logged: who waits may give up at that
			waiting.Warn("connect", "no connection to NATS, trying again", slog.String("address", address), slog.Any("error", err))
			if isRefusal(err) {
				select {
				case refused <- err:
				default:
				}
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			if isRefusal(err) { // of each attempt to connect again
				waiting.Warn("credentials", "the NATS server does not take the credentials any more, trying again: give it back the user, or this program the new ones",
					slog.String("address", address), slog.Any("error", err))
				return
			}
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			log.Warn("NATS error", "error", err, "subject", subject)
		}),
	}, extra...)
	up := make(chan struct{}, 1)
	opts = append(opts, nats.ConnectHandler(func(*nats.Conn) { up <- struct{}{} }))

	nc, err := nats.Connect(url, opts...)
	if err != nil {
		return nil, fmt.Errorf("broker: connect to %s: %w", address, obs.Plain(err))
	}
	if nc.IsConnected() {
		return nc, nil
	}
	select {
	case <-up:
		return nc, nil
	case err = <-refused:
	case <-ctx.Done():
		if err = ctx.Err(); last.Load() != nil {
			err = *last.Load()
		}
	}
	nc.Close()
	if said := obs.Plain(err); !errors.Is(err, said) { // it says what to do
		return nil, fmt.Errorf("broker: connect to %s: %w", address, said)
	}
	return nil, fmt.Errorf("broker: connect to %s: %w: check the address and the credentials", address, err)
}

// isRefusal reports whether a server does not take the credentials.
func isRefusal(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) ||
		errors.Is(err, nats.ErrAccountAuthExpired)
}
