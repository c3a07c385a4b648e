package proxy

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// allowOrigin says whose pages may read an answer.
const allowOrigin = "Access-Control-Allow-Origin"

// anyOrigin among Config.Origins is every one.
const anyOrigin = "*"

// CheckOrigins returns what is wrong with Config.Origins.
func CheckOrigins(list []string) error {
	for _, o := range list {
		if u, err := url.Parse(o); o != anyOrigin && (err != nil || u.Host == "" || u.Scheme+"://"+u.Host != o || strings.ToLower(o) != o) {
			return fmt.Errorf("%q is no origin: give it as browsers do, as https://chat.example or http://localhost:3000, or *", o)
		}
	}
	return nil
}

// sharing lets pages of Config.Origins ask what needs no operator, and read the answers (CORS). What browsers ask
// before, without a token, is answered here.
func (p *Proxy) sharing(h http.Handler) http.Handler {
	all := slices.Contains(p.cfg.Origins, anyOrigin)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin, method := r.Header.Get("Origin"), r.Header.Get("Access-Control-Request-Method")
		asked, preflight := *r, r.Method == http.MethodOptions && method != ""
		if preflight {
			asked.Method = method
		}
		need, _ := p.routes.needs(&asked)
		w.Header()[allowOrigin] = nil // nobody's, and engines are not asked
		if !all {
			w.Header().Set("Vary", "Origin")
		}
		if origin == "" || !all && !slices.Contains(p.cfg.Origins, origin) || need > secure.Reader || passageOf(r) != nil {
			h.ServeHTTP(w, r)
			return
		}
		if all {
			origin = anyOrigin
		}
		w.Header().Set(allowOrigin, origin)
		if !preflight {
			w.Header().Set("Access-Control-Expose-Headers", anyOrigin) // what the router says in its own, too
			h.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Access-Control-Allow-Methods", method)
		if names := r.Header.Values("Access-Control-Request-Headers"); len(names) > 0 {
			w.Header()["Access-Control-Allow-Headers"] = names
		}
		w.Header().Set("Access-Control-Max-Age", "600")
		w.WriteHeader(http.StatusNoContent)
	})
}
