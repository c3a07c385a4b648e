package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"golang.org/x/crypto/bcrypt"

	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/race"
)

// defaultSync is how often what is stored gets to the disk. A process that is
// killed loses nothing, only a machine that loses power does: what its last half
// second told. Publishers on other machines are asked for that, and engines on
// this one have lost their caches (docs/snapshots.md).
const defaultSync = 500 * time.Millisecond

// usualSync is how often stores are synced where nobody says. The server (2.15.2, setSyncTimer)
// has a timer's goroutine read what the one that makes a stream writes after it has started the
// timer: a machine that stands still there for half of defaultSync has the race detector see it.
func usualSync(raced bool) time.Duration {
	if raced {
		return 2 * time.Minute // the server's own
	}
	return defaultSync
}

// startWithin is how long a server may take to start, without a check of what it
// stores.
const startWithin = 30 * time.Second

// pollEvery is how often a joining process looks again for the owner's files
// and the owner's lock.
const pollEvery = 20 * time.Millisecond

// embedded is a server in this process, with the lock that makes it the only
// one on its data directory.
type embedded struct {
	srv  *server.Server
	lock *fileLock
	dir  string
}

// openEmbedded runs the data directory's server, or joins the process that
// runs it. The owner may go away in the middle of a join, or may not have
// written its address yet: then it looks again until ctx ends.
func openEmbedded(ctx context.Context, cfg Config) (*Broker, error) {
	if cfg.DataDir == "" {
		return nil, errors.New("broker: an embedded server needs a data directory")
	}
	if cfg.Port < 0 || cfg.Port > math.MaxUint16 || cfg.MaxStore < 0 || cfg.Sync < 0 { // the server ends the process for it, later
		return nil, fmt.Errorf("broker: port %d, at most %d bytes, synced every %v: give a port up to 65535, and nothing below 0", cfg.Port, cfg.MaxStore, cfg.Sync)
	}
	dir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("broker: data directory: %w", err)
	}
	cfg.waiting = obs.NewLimited(cfg.Log, tellEvery, nil) // of all attempts
	if cfg.JoinOnly {
		return joinOnly(ctx, cfg, dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("broker: data directory: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a directory needs x
		return nil, fmt.Errorf("broker: data directory must be private to its owner: %w", err)
	}
	for begun := time.Now(); ; {
		lock, err := tryLock(filepath.Join(dir, lockFile))
		if err != nil {
			return nil, fmt.Errorf("broker: lock of data directory %s: %w", dir, err)
		}
		if lock != nil {
			b, err := own(ctx, cfg, dir, lock)
			if err != nil {
				return nil, errors.Join(err, lock.release())
			}
			return b, nil
		}
		b, err := join(ctx, cfg, dir)
		if err == nil {
			return b, nil
		}
		if time.Since(begun) > time.Second { // a start beside ours takes less
			cfg.waiting.Warn("join", "another process holds the data directory, and its server cannot be joined; trying again",
				slog.String("data", dir), slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("broker: another process holds data directory %s, and its server cannot be joined: %w", dir, err)
		case <-time.After(pollEvery):
		}
	}
}

// nobody is why a program that only joins does not, and what can be done about it.
const nobody = "no process runs a NATS server on the data directory, or it cannot be joined: " +
	"start kvindexer or kvrouter on it, or name a server with --nats"

// joinOnly joins the process that runs the server of dir, once there is one.
func joinOnly(ctx context.Context, cfg Config, dir string) (*Broker, error) {
	for begun := time.Now(); ; {
		b, err := join(ctx, cfg, dir)
		if err == nil {
			return b, nil
		}
		if time.Since(begun) > time.Second { // who runs it may start beside us
			cfg.waiting.Warn("join", nobody+"; trying again", slog.String("data", dir), slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("broker: %s (data directory %s): %w", nobody, dir, err)
		case <-time.After(pollEvery):
		}
	}
}

// own starts the server; the caller releases the lock if that fails.
func own(ctx context.Context, cfg Config, dir string, lock *fileLock) (*Broker, error) {
	cred, err := loadOrMakeCredentials(dir)
	if err != nil {
		return nil, err
	}
	checks, err := begin(dir)
	if err != nil {
		return nil, err
	}
	within := startWithin
	if checks {
		cfg.Log.Info("the last run did not end in order: the NATS server checks all messages", "data", dir)
		within = math.MaxInt64 // as long as its disk takes
	}
	srv, err := startServer(ctx, cfg, dir, cred, within)
	if err != nil {
		return nil, err
	}
	e := &embedded{srv: srv, lock: lock, dir: dir}
	addr := srv.Addr().String()
	if err := writeAddress(dir, addr); err != nil {
		e.stop()
		return nil, err
	}
	nc, err := connect(ctx, cfg, "nats://"+addr, nats.UserInfo(cred.User, cred.Password))
	if err != nil {
		e.stop()
		return nil, err
	}
	cfg.Log.Info("embedded NATS server is up", "address", addr, "data", dir)
	return &Broker{nc: nc, embedded: e}, nil
}

// join connects to the server of the process that holds the lock.
func join(ctx context.Context, cfg Config, dir string) (*Broker, error) {
	addr, err := readAddress(dir)
	if err != nil {
		return nil, err
	}
	cred, err := readCredentials(dir)
	if err != nil {
		return nil, err
	}
	// One short attempt: the address may be that of an owner that is gone.
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	nc, err := connect(ctx, cfg, "nats://"+addr, nats.UserInfo(cred.User, cred.Password), nats.SetCustomDialer(finder{dir}))
	if err != nil {
		return nil, err
	}
	cfg.Log.Info("joined the NATS server of another process", "address", addr, "data", dir)
	return &Broker{nc: nc}, nil
}

// finder dials the server of a directory where it is by now: the next one has another port if somebody
// has taken that of the one before.
type finder struct{ dir string }

func (f finder) Dial(network, address string) (net.Conn, error) {
	if addr, err := readAddress(f.dir); err == nil {
		address = addr
	}
	return net.DialTimeout(network, address, dialTimeout)
}

// startServer starts a JetStream server on dir and waits until it accepts
// connections, or ctx ends.
func startServer(ctx context.Context, cfg Config, dir string, cred credentials, within time.Duration) (*server.Server, error) {
	// The server keeps a hash only. The password is random and long: a cheap
	// hash of it is as hard to invert as an expensive one.
	hash, err := bcrypt.GenerateFromPassword([]byte(cred.Password), bcrypt.MinCost)
	if err != nil {
		return nil, fmt.Errorf("broker: password in the credentials file: %w", err)
	}
	log := &serverLog{log: cfg.Log}
	srv, err := server.NewServer(&server.Options{
		ServerName:             "kvatlas",
		Host:                   "127.0.0.1",
		Port:                   choosePort(cfg.Port, dir),
		Username:               cred.User,
		Password:               string(hash),
		NoSigs:                 true,
		JetStream:              true,
		JetStreamMaxStore:      cfg.MaxStore,
		StoreDir:               dir,
		SyncAlways:             cfg.SyncAlways,
		SyncInterval:           cmp.Or(cfg.Sync, usualSync(race.Enabled)),
		DisableJetStreamBanner: true,
	})
	if err != nil {
		return nil, fmt.Errorf("broker: embedded server: %w", err)
	}
	srv.SetLoggerV2(log, false, false, false)
	go srv.Start() // ends with Shutdown
	begun := time.Now()
	for !srv.ReadyForConnections(100 * time.Millisecond) {
		fatal := log.fatal()
		if fatal == nil && time.Since(begun) > within {
			fatal = fmt.Errorf("not ready after %v: the next start checks all messages", within)
		}
		if fatal == nil && ctx.Err() != nil {
			fatal = fmt.Errorf("it was still starting: %w", context.Cause(ctx))
		}
		if fatal != nil {
			srv.Shutdown()
			srv.WaitForShutdown()
			return nil, fmt.Errorf("broker: embedded server on %s: %w", dir, fatal)
		}
	}
	return srv, nil
}

// choosePort returns the wanted port, or the port of the last run if it is
// free, so that joined processes find the server again after a restart.
func choosePort(want int, dir string) int {
	if want != 0 {
		return want
	}
	addr, err := readAddress(dir)
	if err != nil {
		return server.RANDOM_PORT
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return server.RANDOM_PORT
	}
	_ = l.Close() // only a probe
	_, port, _ := net.SplitHostPort(addr)
	n, err := strconv.Atoi(port)
	if err != nil {
		return server.RANDOM_PORT
	}
	return n
}

func (e *embedded) stop() {
	e.srv.Shutdown()
	e.srv.WaitForShutdown()
}

// close stops the server, and only then lets another process have the data.
func (e *embedded) close() error {
	e.stop()
	return errors.Join(end(e.dir), e.lock.release())
}

// serverLog passes the server's log on, notices as debug lines, and keeps the
// first fatal message: the server reports a failed start nowhere else.
type serverLog struct {
	log   *slog.Logger
	first atomic.Pointer[error]
}

func (l *serverLog) fatal() error {
	if err := l.first.Load(); err != nil {
		return *err
	}
	return nil
}

func (l *serverLog) Noticef(f string, v ...any) { l.debug(f, v) }
func (l *serverLog) Debugf(f string, v ...any)  { l.debug(f, v) }
func (l *serverLog) Tracef(f string, v ...any)  { l.debug(f, v) }
func (l *serverLog) Warnf(f string, v ...any)   { l.log.Warn("NATS server: " + fmt.Sprintf(f, v...)) }
func (l *serverLog) Errorf(f string, v ...any)  { l.log.Error("NATS server: " + fmt.Sprintf(f, v...)) }
func (l *serverLog) Fatalf(f string, v ...any) {
	err := fmt.Errorf(f, v...)
	l.first.CompareAndSwap(nil, &err)
}

func (l *serverLog) debug(f string, v []any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug("NATS server: " + fmt.Sprintf(f, v...))
	}
}
