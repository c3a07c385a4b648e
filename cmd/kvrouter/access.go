package main

import (
	"net"
	"net/http"

	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/router/selection"
)

// needs says who may make a request: readers ask and generate, operators
// change what the router goes by. Tenants get answers from their own group's
// engines; what shows or changes more than that is not for them.
func needs(r *http.Request) (role secure.Role, tenants bool) {
	switch path := r.URL.Path; {
	case path == "/livez" || path == "/readyz" || path == "/version" || path == "/openapi.yaml":
		return secure.Anybody, true
	case path == "/metrics":
		return secure.Reader, false
	case !selection.Owns(path):
		return secure.Reader, true
	case path == "/v1/select" || path == "/v1/potential_loads" || r.Method == http.MethodGet || r.Method == http.MethodHead:
		return secure.Reader, false
	}
	return secure.Operator, false
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
