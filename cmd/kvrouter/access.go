package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/router/accesslog"
)

// front returns ln as requests come through it. Its connections hide from the server
// whether they are of TLS, so HTTP/2 is known by how it begins in either case.
func (x *router) front(ln net.Listener, access *secure.Access) net.Listener {
	var besides []string
	if x.cfg.HTTP2 {
		besides = []string{"h2"}
	}
	return access.TLS(x.limited(ln), besides...)
}

// http2 returns what serves the connections of clients that speak HTTP/2; nil for none.
func (x *router) http2() *http.Server {
	if !x.cfg.HTTP2 {
		return nil
	}
	s := &http.Server{
		Handler:        x.proxy,
		ReadTimeout:    x.cfg.Proxy.ReadTimeout,
		WriteTimeout:   x.cfg.Proxy.WriteTimeout,
		IdleTimeout:    x.cfg.Proxy.IdleTimeout,
		MaxHeaderBytes: int(x.cfg.Proxy.MaxHeader),
		ErrorLog:       slog.NewLogLogger(x.log.Handler(), slog.LevelDebug),
		Protocols:      new(http.Protocols),
		HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: x.cfg.HTTP2Streams, WriteByteTimeout: x.cfg.Proxy.WriteTimeout},
	}
	s.Protocols.SetUnencryptedHTTP2(true) // over TLS, too: it is not told of that
	return s
}

// openAccessLog opens the access log that the settings name; nil for none.
func (c *config) openAccessLog(log *slog.Logger) (*accesslog.Log, error) {
	switch c.AccessLog {
	case "":
		return nil, nil
	case "-":
		return accesslog.New(os.Stdout, int(c.AccessLogBuffer), log), nil
	}
	return accesslog.Open(c.AccessLog, int(c.AccessLogBuffer), log)
}

// checkAccessLog returns why it cannot be opened, as far as that is to be seen without
// making the file.
func (c *config) checkAccessLog() error {
	if c.AccessLog == "" || c.AccessLog == "-" {
		return nil
	}
	if st, err := os.Stat(c.AccessLog); err == nil && st.IsDir() {
		return fmt.Errorf("--access-log %s: it is a directory, give a file", c.AccessLog)
	}
	if _, err := os.Stat(filepath.Dir(c.AccessLog)); err != nil {
		return fmt.Errorf("--access-log: %w", err)
	}
	return nil
}

// limited returns ln with the limits on connections.
func (x *router) limited(ln net.Listener) net.Listener {
	const family, help = "kvatlas_router_refused_connections_total", "Connections of clients that were closed because of a limit, by limit."
	all, address := x.metrics.Counter(family, help, "limit", "all"), x.metrics.Counter(family, help, "limit", "address")
	l := secure.Limit(ln, secure.LimitConfig{
		Total: x.cfg.Proxy.MaxConnections, PerAddress: x.cfg.Proxy.MaxConnectionsIP,
		Refuse: func(c net.Conn, ofAddress bool) {
			if ofAddress {
				address.Inc()
			} else {
				all.Inc()
			}
			_ = c.Close() // nothing is lost with it
		},
	})
	x.metrics.Gauge("kvatlas_router_connections", "Open connections of clients.", func() float64 { return float64(l.Connections()) })
	return l
}
