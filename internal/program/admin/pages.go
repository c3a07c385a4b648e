package admin

import (
	"net/http"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// guard keeps pages of other sites out, whose browser reaches the port for them. What they
// send is refused wherever it would change something, and whatever is not asked by a name
// of the port's own.
func (s *Server) guard(h http.Handler) http.Handler {
	names := s.deps.Access.Names(s.ln.Addr().String())
	sites := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case sites.Check(r) != nil:
			refuse(w, edge.Refuse(http.StatusForbidden, "Origin", edge.Forbidden, "pages of other sites change nothing here"))
		case !names.Has(r.Host):
			refuse(w, edge.Refuse(http.StatusForbidden, "Host", edge.Forbidden, secure.RefusedName))
		default:
			h.ServeHTTP(w, r)
		}
	})
}
