package admin

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/kvatlas/kvatlas/internal/program/edge"
)

// guard keeps pages of other sites out, whose browser reaches the port for them. What they
// send is refused wherever it would change something. Without tokens a loopback port takes
// whoever reaches it for one of the machine, and so it must not be reached by a name, which
// may be a site's own that means this machine now (DNS rebinding): only as localhost or by
// an address. Certificates hold such a site off, too.
func (s *Server) guard(h http.Handler) http.Handler {
	addr, ok := s.ln.Addr().(*net.TCPAddr)
	named := !ok || !addr.IP.IsLoopback() || s.deps.Access.Guarded() || s.deps.Access.HasTLS()
	sites := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case sites.Check(r) != nil:
			refuse(w, edge.Refuse(http.StatusForbidden, "Origin", edge.Forbidden, "pages of other sites change nothing here"))
		case !named && !isLocal(r.Host):
			refuse(w, edge.Refuse(http.StatusForbidden, "Host", edge.Forbidden,
				"ask for localhost or an address: without --tokens-file this port is not served by other names"))
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// isLocal reports whether a request's Host is an address or localhost; none is no browser's.
func isLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	_, err := netip.ParseAddr(host)
	return err == nil || host == "" || strings.EqualFold(host, "localhost")
}
