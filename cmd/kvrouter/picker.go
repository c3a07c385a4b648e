package main

import (
	"context"
	"log/slog"

	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/router/picker"
)

// servePicker answers gateways, if there is to be a picker; served is told of its end.
func (x *router) servePicker(ctx context.Context, access *secure.Access, served chan<- error) (err error) {
	c, p := x.cfg.Picker, &x.cfg.Proxy
	if c.Listen == "" {
		return nil
	}
	c.Handler, c.Metrics, c.Log, c.BusyStatus = x.proxy, x.metrics, x.log, p.BusyStatus
	c.Known = x.objectives.Priority
	c.Ready = func() bool { _, ready := x.index.Health().Ready(false); return ready }
	c.MaxBody, c.MaxHeader, c.ReadTimeout, c.MaxInflight = p.MaxBody, p.MaxHeader, p.ReadTimeout, p.MaxInflight
	if x.picker, err = picker.New(c); err != nil {
		return err
	}
	ln, err := access.Listen(ctx, c.Listen, "picker-listen")
	if err != nil {
		return err
	}
	x.log.Info("answering gateways", slog.String("address", ln.Addr().String()))
	ln = access.TLS(x.limited(ln), "h2")
	go func() { served <- x.picker.Serve(ln) }() // ends with Shutdown
	return nil
}

// endPicker lets the requests that gateways have come to their ends.
func (x *router) endPicker(ctx context.Context) error {
	if x.picker == nil {
		return nil
	}
	return x.picker.Shutdown(ctx)
}
