package proxy

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Where clients give the router tokens, engines get nothing by which clients show who they are: to the router, to what
// is in front of it, or to whomever they think they ask. Names of such headers are made up by everybody, so it is words in
// a name that tell. What is lost for that to an engine that wants it can be named (Config.PassHeaders).

// secretive are what names of headers have in them that carry what nobody else is to have.
var secretive = [...]string{
	"auth", "token", "key", "secret", "bearer", "dpop", "passw", "passphrase", "passcode", "pwd", "credential", "cookie", "cert", "jwt", "oidc", "saml", "assertion", "signature", "principal",
}

// credential reports whether a header's name, in canonical form, is that of what a client shows.
func credential(name string, pass []string) bool {
	switch name {
	case "Content-Type", "Content-Length", "Content-Encoding", "Accept", "Accept-Encoding", "User-Agent", "Connection", headerRequest: // of nearly all
		return false
	case "Idempotency-Key":
		return false
	}
	for i := range len(name) {
		for _, s := range secretive {
			if name[i]|0x20 == s[0] && len(name)-i >= len(s) && strings.EqualFold(name[i:i+len(s)], s) {
				return !slices.Contains(pass, name)
			}
		}
	}
	return false
}

// headerSession has, within the router, what a client gives in Config.SessionHeader where that is taken out.
const headerSession = prefix + "Session"

// withoutCredentials takes out of a head what the client shows.
func (p *Proxy) withoutCredentials(h http.Header) {
	delete(h, headerSession)
	if p.cfg.Access == nil || !p.cfg.Access.Guarded() {
		return
	}
	for name := range h {
		if credential(name, p.cfg.PassHeaders) {
			if strings.EqualFold(name, p.cfg.SessionHeader) {
				h[headerSession] = h[name]
			}
			delete(h, name)
		}
	}
}

// PassHeaders returns names of headers in canonical form. The error is about one by which clients show the router's own tokens.
func PassHeaders(names []string) (list []string, err error) {
	for _, name := range names {
		name = http.CanonicalHeaderKey(strings.TrimSpace(name))
		if name == "Authorization" || name == "X-Api-Key" {
			return nil, fmt.Errorf("%s has clients' tokens for the router, which engines do not get", name)
		}
		list = append(list, name)
	}
	return list, nil
}
