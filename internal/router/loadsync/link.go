package loadsync

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/route/replica"
	"github.com/kvatlas/kvatlas/shard"
)

// prefix begins every subject. Streams of events capture "kvatlas.…".
const prefix = "kvatlas-route"

// The bounds on what waits to be taken from one subscription.
const (
	pendingMessages = 8192
	pendingBytes    = 32 << 20
)

// Config holds the settings of a Link. Conn, Namespace, ID and Router are
// needed.
type Config struct {
	Conn      *nats.Conn // lives longer than the Link
	Namespace string
	Space     event.Space
	ID        uint64 // as the Router's Config.ID
	Router    *route.Router
	// Relieved, if not nil, is called after another router's word has taken load away, as a
	// request's first token or end does: who waits at this one may find room. No lock is held.
	Relieved func()
	// Heartbeat is the time between two; 0 is 1 second.
	Heartbeat time.Duration
	Log       *slog.Logger // nil: slog.Default()
}

// Link is a router's connection to the others of its space. Its methods are
// safe for concurrent use.
type Link struct {
	conn     *nats.Conn
	all      string // subject of every router
	subs     []*nats.Subscription
	replicas *replica.Replicas
	state    *relief
	relieved func()
	log      *obs.Limited
	stop     context.CancelFunc
	done     chan struct{}
	close    sync.Once
}

// Open makes the Link the Router's journal and starts to tell and to listen. The
// others are met within a heartbeat.
func Open(cfg Config) (*Link, error) {
	if err := stream.CheckNamespace(cfg.Namespace); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	l := &Link{
		conn: cfg.Conn, all: prefix + "." + cfg.Namespace + "." + stream.Token(cfg.Space),
		state: &relief{Router: cfg.Router}, relieved: cfg.Relieved,
		log: obs.NewLimited(cfg.Log, time.Second, nil), done: make(chan struct{}),
	}
	rc := replica.Config{
		ID: cfg.ID, Scope: shard.SpaceHash(cfg.Space), State: l.state, Transport: l, Heartbeat: cfg.Heartbeat, Delay: cfg.Router.SetDelay,
	}
	if most := cfg.Conn.MaxPayload(); most > 0 { // 0 before the first connection
		rc.MessageBytes = int(min(most, 512<<10))
	}
	l.replicas = replica.New(rc)
	cfg.Router.SetJournal(l.replicas)
	for _, subject := range []string{l.all, l.subject(cfg.ID)} {
		if err := l.subscribe(subject); err != nil {
			cfg.Router.SetJournal(nil)
			return nil, errors.Join(fmt.Errorf("listening to other routers on %s: %w", subject, err), l.unsubscribe())
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	go func() { // ends with Close
		defer close(l.done)
		l.replicas.Run(ctx, func(err error) {
			if !l.conn.IsConnected() {
				return // the connection's own log says so, and each heartbeat would
			}
			l.log.Warn("send", "telling other routers failed; they ask again", slog.Any("error", err))
		})
	}()
	return l, nil
}

func (l *Link) subscribe(subject string) error {
	sub, err := l.conn.Subscribe(subject, func(m *nats.Msg) {
		if err := l.replicas.Receive(m.Data); err != nil {
			l.log.Warn("receive", "a message of another router is of no use", slog.Any("error", err))
		}
		l.tellRelief()
	})
	if err != nil {
		return err
	}
	l.subs = append(l.subs, sub)
	return sub.SetPendingLimits(pendingMessages, pendingBytes)
}

func (l *Link) unsubscribe() (err error) {
	for _, s := range l.subs {
		if e := s.Unsubscribe(); e != nil && !errors.Is(e, nats.ErrConnectionClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// tellRelief says so if load has gone away since it was asked last.
func (l *Link) tellRelief() {
	if l.state.any.Load() && l.state.any.Swap(false) && l.relieved != nil {
		l.relieved()
	}
}

// relief is the router's state, which notes that another router's word took load away, or what load was to come.
type relief struct {
	*route.Router
	any atomic.Bool
}

// Apply implements replica.State.
func (r *relief) Apply(c load.Change) bool {
	changed := r.Router.Apply(c)
	if changed && (c.Kind == load.Prefilled || c.Kind == load.Freed || c.Kind == load.Sought) {
		r.any.Store(true)
	}
	return changed
}

// Replace implements replica.State.
func (r *relief) Replace(owner uint64, live iter.Seq[load.Change]) {
	r.Router.Replace(owner, live)
	r.any.Store(true)
}

// DropOwner implements replica.State.
func (r *relief) DropOwner(owner uint64) {
	r.Router.DropOwner(owner)
	r.any.Store(true)
}

// subject returns where one router listens alone.
func (l *Link) subject(id uint64) string { return l.all + ".to." + strconv.FormatUint(id, 16) }

// Publish implements replica.Transport.
func (l *Link) Publish(msg []byte) error { return l.conn.Publish(l.all, msg) }

// Send implements replica.Transport.
func (l *Link) Send(to uint64, msg []byte) error { return l.conn.Publish(l.subject(to), msg) }

// Stats returns what was told and heard.
func (l *Link) Stats() replica.Stats { return l.replicas.Stats() }

// Dropped returns how many messages of other routers the client dropped because
// too many waited.
func (l *Link) Dropped() (n int) {
	for _, s := range l.subs {
		if d, err := s.Dropped(); err == nil { // an ended subscription tells no more
			n += d
		}
	}
	return n
}

// Close tells the others that this router ends and stops listening. Closing
// twice is fine.
func (l *Link) Close() (err error) {
	l.close.Do(func() {
		l.stop()
		<-l.done // Run has sent that it leaves
		err = errors.Join(l.unsubscribe(), flush(l.conn))
	})
	return err
}

// flush waits until the server has that this router leaves. One that goes meanwhile is told nothing; the others
// notice then.
func flush(nc *nats.Conn) error {
	if !nc.IsConnected() {
		return nil
	}
	err := nc.FlushTimeout(time.Second)
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) && nc.IsConnected() {
		return fmt.Errorf("telling other routers that this one ends: %w", err)
	}
	return nil
}
