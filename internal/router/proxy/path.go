package proxy

import (
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"
)

// canonicalise gives the request's path the one form in which everything after it
// looks at it, and in which it goes on to engines: without empty segments, dots, a
// slash at its end, and escapes that are not needed. It reports whether the path has
// such a form: what servers disagree about has none.
func canonicalise(u *url.URL) bool {
	if u.RawPath == "" && plain(u.Path) {
		return true
	}
	var kept, escaped []string
	for part := range strings.SplitSeq(u.EscapedPath(), "/") {
		text, err := url.PathUnescape(part)
		if err != nil || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
			return false
		}
		switch text {
		case "", ".":
		case "..":
			kept, escaped = kept[:max(len(kept)-1, 0)], escaped[:max(len(escaped)-1, 0)]
		default:
			for segment := range strings.SplitSeq(text, "/") {
				if segment == ".." || segment == "." {
					return false // hidden behind an escaped slash
				}
			}
			kept, escaped = append(kept, text), append(escaped, url.PathEscape(text))
		}
	}
	u.Path, u.RawPath = "/"+strings.Join(kept, "/"), ""
	if raw := "/" + strings.Join(escaped, "/"); strings.Count(raw, "/") != strings.Count(u.Path, "/") {
		u.RawPath = raw // a segment has a slash in it
	}
	return true
}

// plain reports whether the path is of a form that is canonical, and is written like
// that: the paths of nearly all requests.
func plain(path string) bool {
	if len(path) < 2 || path[0] != '/' || path[len(path)-1] == '/' {
		return false
	}
	for i := range len(path) {
		switch c := path[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		case c == '/' && path[i+1] != '/':
		default:
			return false
		}
	}
	return true
}

// canonical returns the canonical form of a path.
func canonical(path string) string {
	u := url.URL{Path: path}
	if !canonicalise(&u) {
		return ""
	}
	return u.Path
}

// front refuses what is no request to this server or has no place on an HTTP/1.1
// connection to it, and gives the others their canonical path.
func (p *Proxy) front(w http.ResponseWriter, r *http.Request) *refusal {
	h := w.Header()
	switch {
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace:
		h.Set("Connection", "close")
		h.Set("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
		return refuse(http.StatusMethodNotAllowed, "method_not_allowed", "the router is no tunnel and no mirror")
	case r.Method == "PRI": // how HTTP/2 begins
		h.Set("Connection", "close")
		return refuse(http.StatusHTTPVersionNotSupported, "http_version", "use HTTP/1.1")
	case r.Header.Get("Upgrade") != "" && namedIn(r.Header.Values("Connection"), "Upgrade"):
		h.Set("Connection", "close")
		return refuse(http.StatusNotImplemented, "upgrade", "the router does not change protocols: no WebSocket, no HTTP/2 by upgrade")
	}
	if !canonicalise(r.URL) {
		return refuse(http.StatusBadRequest, "invalid_path", "the path has bytes, or hides segments, that servers disagree about")
	}
	return nil
}

// Refused counts what its connection has refused before it was a request.
func (p *Proxy) Refused(reason string) { p.obs.outcome(reason).Inc() }
