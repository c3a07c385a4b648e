package secure

import (
	"context"
	"fmt"
	"net/http"
)

type callerKey struct{}

// CallerOf returns who a request comes from that a Guard let in.
func CallerOf(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// Needs says who may make a request: the role, and whether tenants may, too.
type Needs func(r *http.Request) (role Role, tenants bool)

// Refuse answers a request that is not let in for what a header of it says, or does not: with 401 or 403.
type Refuse func(w http.ResponseWriter, r *http.Request, status int, header, message string)

// Guard lets only callers of the role in, and no tenants unless anybody is.
func (a *Access) Guard(needs Role, h http.Handler) http.Handler {
	return a.GuardBy(func(*http.Request) (Role, bool) { return needs, false }, refuse, h)
}

// GuardBy lets in whom the request needs; no answers the others. The token does not go further than
// here; CallerOf says whose it was. Without tokens everybody may, but for the pages of
// other sites in a browser, which do nothing that is an operator's.
func (a *Access) GuardBy(needs Needs, no Refuse, h http.Handler) http.Handler {
	sites := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		role, tenants := needs(r)
		if a.tokens == nil {
			if role == Operator && sites.Check(r) != nil {
				no(w, r, http.StatusForbidden, "Origin", "without --tokens-file this is not for pages of other sites")
				return
			}
			h.ServeHTTP(w, r)
			return
		}
		c, refusal := a.Check([]byte(r.Header.Get("Authorization")), role)
		switch {
		case refusal == Unauthenticated:
			w.Header().Set("WWW-Authenticate", "Bearer")
			no(w, r, http.StatusUnauthorized, "Authorization", "give a valid token: Authorization: Bearer …")
			return
		case refusal == Forbidden || c.Tenant != nil && !tenants:
			no(w, r, http.StatusForbidden, "Authorization", "the token is for less than this")
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
		r.Header.Del("Authorization")
		h.ServeHTTP(w, r)
	})
}

// refuse answers in the form of the programs' own APIs.
func refuse(w http.ResponseWriter, _ *http.Request, status int, header, message string) {
	reason := "forbidden"
	if status == http.StatusUnauthorized {
		reason = "unauthenticated"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"error":{"field":%q,"reason":%q,"message":%q}}`+"\n", header, reason, message) // the client may be gone
}
