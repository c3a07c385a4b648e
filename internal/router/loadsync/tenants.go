package loadsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/router/quota"
)

// TenantsConfig holds the settings of Tenants.
type TenantsConfig struct {
	Conn      *nats.Conn // lives longer than the Tenants
	Namespace string
	Table     *quota.Table
	Quota     quota.Config
	Log       *slog.Logger
}

// Tenants carries what tenants have used between the routers of a namespace.
type Tenants struct {
	cfg  TenantsConfig
	sub  *nats.Subscription
	log  *obs.Limited
	stop context.CancelFunc
	done chan struct{}
}

// tenantsSubject returns where routers tell what tenants used. No space is called so.
func tenantsSubject(namespace string) string { return prefix + "." + namespace + ".tenants" }

// OpenTenants has the Table agree with those of the other routers, until Close.
func OpenTenants(cfg TenantsConfig) (*Tenants, error) {
	if err := stream.CheckNamespace(cfg.Namespace); err != nil {
		return nil, err
	}
	t := &Tenants{cfg: cfg, log: obs.NewLimited(cfg.Log, time.Second, nil), done: make(chan struct{})}
	cfg.Table.Join(cfg.Quota)
	subject := tenantsSubject(cfg.Namespace)
	var err error
	t.sub, err = cfg.Conn.Subscribe(subject, func(m *nats.Msg) {
		if err := cfg.Table.Receive(time.Now(), m.Data); err != nil {
			t.log.Warn("receive", "a message of another router is of no use", slog.Any("error", err))
		}
	})
	if err == nil {
		err = t.sub.SetPendingLimits(pendingMessages, pendingBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("listening to other routers on %s: %w", subject, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.stop = cancel
	go t.run(ctx) // ends with Close
	return t, nil
}

func (t *Tenants) run(ctx context.Context) {
	defer close(t.done)
	tick := time.NewTicker(t.cfg.Quota.Every)
	defer tick.Stop()
	for {
		// While there is no connection nothing is sent: the client would keep it for later.
		t.send(t.cfg.Table.Tick(time.Now(), t.cfg.Conn.IsConnected()))
		select {
		case <-ctx.Done():
			if t.cfg.Conn.IsConnected() {
				t.send([][]byte{t.cfg.Table.Leave()})
			}
			return
		case <-tick.C:
		}
	}
}

// send sends messages. The others notice what is missing, and ask.
func (t *Tenants) send(all [][]byte) {
	for _, msg := range all {
		if err := t.cfg.Conn.Publish(tenantsSubject(t.cfg.Namespace), msg); err != nil {
			t.log.Warn("send", "telling other routers what tenants used failed; they ask again", slog.Any("error", err))
		}
	}
}

// Close tells the others that this router ends and stops listening.
func (t *Tenants) Close() error {
	t.stop()
	<-t.done
	err := t.sub.Unsubscribe()
	if errors.Is(err, nats.ErrConnectionClosed) {
		err = nil
	}
	return errors.Join(err, flush(t.cfg.Conn))
}
