package query

import (
	"net"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/program/sock"
)

// limited returns ln with the limits on connections. Those beyond are answered
// with a problem and closed; where TLS is expected, only closed.
func (s *Server) limited(ln net.Listener) *secure.Limited {
	return secure.Limit(sock.Listener{Listener: ln}, secure.LimitConfig{
		Total: s.cfg.MaxConnections, PerAddress: s.cfg.MaxConnectionsIP,
		Refuse: func(c net.Conn, ofAddress bool) {
			p := edge.Refuse(fasthttp.StatusServiceUnavailable, "connection", edge.Connections,
				"the server has "+strconv.Itoa(s.cfg.MaxConnections)+" connections, its limit (--http-max-connections)")
			if ofAddress {
				p = edge.Refuse(fasthttp.StatusTooManyRequests, "connection", edge.Address, "this address has "+
					strconv.Itoa(s.cfg.MaxConnectionsIP)+" connections, its limit (--http-max-connections-per-ip)")
			}
			s.obs.refused(p.Reason)
			if !s.deps.Access.HasTLS() {
				sendRefusal(c, p)
			}
			_ = c.Close() // nothing is lost with it
		},
	})
}

// sendRefusal answers a connection that is not served. The answer fits the
// empty send buffer of a new connection, so this never waits.
func sendRefusal(c net.Conn, p *edge.Problem) {
	body := p.JSON()
	answer := "HTTP/1.1 " + strconv.Itoa(p.Status) + " " + fasthttp.StatusMessage(p.Status) +
		"\r\nConnection: close\r\nRetry-After: 1\r\nContent-Type: " + edge.TypeJSON +
		"\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + string(body)
	if err := c.SetWriteDeadline(time.Now().Add(time.Second)); err == nil {
		_, _ = c.Write([]byte(answer)) // the client may be gone
	}
}
