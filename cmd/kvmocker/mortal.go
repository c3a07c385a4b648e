package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/bench/mocker"
	"github.com/kvatlas/kvatlas/publish"
)

// mortal is a publisher with a connection of its own, so that it can end as a process does
// that is killed: with its connection, and a lease that nobody gives back.
type mortal struct {
	*publish.Publisher
	conn *nats.Conn
}

// openMortal opens a publisher that connects as cfg.Conn did.
func openMortal(ctx context.Context, cfg publish.Config) (mocker.Publisher, error) {
	o := cfg.Conn.Opts
	o.ClosedCB, o.DisconnectedErrCB, o.AsyncErrorCB = nil, nil, nil // its end is meant
	nc, err := o.Connect()
	if err != nil {
		return nil, fmt.Errorf("connect a worker that is to die: %w", err)
	}
	cfg.Conn, cfg.Group = nc, nil
	cfg.Log = slog.New(slog.DiscardHandler) // as its connection's
	p, err := publish.Open(ctx, cfg)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("publish for a worker that is to die: %w", err)
	}
	return mortal{p, nc}, nil
}

// Kill cuts the connection. Close ends the rest.
func (m mortal) Kill() { m.conn.Close() }

// Close implements mocker.Publisher.
func (m mortal) Close(ctx context.Context) error {
	defer m.conn.Close()
	return m.Publisher.Close(ctx)
}
