package proxy

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/router/quota"
)

// headerTenant is by which trusted callers say for whom a request counts.
const headerTenant = prefix + "Tenant"

// anonymous is for whom requests count whose caller has no name.
const anonymous = "anonymous"

// tenantOf returns the only group that the caller's token is for; nil: all.
func tenantOf(r *http.Request) *string {
	c, _ := secure.CallerOf(r.Context())
	return c.Tenant
}

// names returns what requests may give as their model: of a tenant, the models
// and adapters of its group.
func (p *Proxy) names(tenant *string) []string {
	names := p.fleet.Names()
	if tenant == nil {
		return names
	}
	return slices.DeleteFunc(names, func(name string) bool {
		m, _ := p.fleet.Lookup(name, *tenant)
		return m == nil || m.Group != *tenant
	})
}

// payer is for whom a request counts.
type payer struct {
	name   string
	limits *secure.Limits // nil: none
	taken  int64          // tokens
	levels *quota.Decision
}

func (y *payer) limit() quota.Limit {
	return quota.Limit{Requests: y.limits.Requests, Tokens: y.limits.Tokens, Per: y.limits.Per}
}

// payerOf returns for whom a request counts: the account of its token, or whom a
// trusted caller names.
func (p *Proxy) payerOf(r *http.Request, trusted bool) (y payer, no *refusal) {
	c, _ := secure.CallerOf(r.Context())
	if y = (payer{name: c.Account, limits: c.Limits}); y.name == "" {
		y.name = anonymous
	}
	if name := r.Header.Get(headerTenant); name != "" && trusted {
		if !edge.PlainID(name) {
			return y, refuse(http.StatusBadRequest, "invalid_option", badHeader(headerTenant, "a plain name of at most 128 bytes").Error())
		}
		y.name, y.limits = strings.Clone(name), p.cfg.Access.Limits(name) // kept in tables: not the head with it
	}
	return y, nil
}

// charge takes what the request is known to use from what its tenant may. An answer
// says how that stands.
func (p *Proxy) charge(r *http.Request, q *call) *refusal {
	y := &q.payer
	if y.limits == nil || r.Method != http.MethodPost {
		return nil
	}
	limit := y.limit()
	if !limit.Set() {
		return nil
	}
	y.taken = int64(len(q.tokens) + q.rest)
	if q.tokens == nil {
		y.taken = int64(q.guess())
	}
	d := p.quotas.Take(time.Now(), y.name, limit, y.taken)
	if y.levels = &d; d.Refused == "" {
		return nil
	}
	p.obs.limited(d.Refused).Inc()
	most := d.Requests.Limit
	if d.Refused == quota.ByTokens {
		most = d.Tokens.Limit
	}
	no := refuse(http.StatusTooManyRequests, "rate_limit_exceeded", fmt.Sprintf("more than the %d %s in %v that %s may use; try again in %v",
		most, d.Refused, limit.Per, shorten(y.name), d.Wait.Round(time.Millisecond)))
	no.kind, no.after = d.Refused, d.Wait
	return no
}

// settle takes what the request has used in the end.
func (p *Proxy) settle(q *call, used int64) {
	if y := &q.payer; y.levels != nil && y.levels.Refused == "" && used != y.taken {
		p.quotas.Settle(time.Now(), y.name, y.limit(), used-y.taken)
	}
}

// own sets the headers of an answer that are the router's to set, whatever the engine
// says.
func (q *call) own(h http.Header) {
	if q.name != nil {
		h[headerRequest] = q.name
	}
	if d := q.payer.levels; d != nil {
		setLevel(h, "Requests", &d.Requests)
		setLevel(h, "Tokens", &d.Tokens)
	}
}

// setLevel says how a limit stands, in the headers that OpenAI's API has for it.
func setLevel(h http.Header, of string, l *quota.Level) {
	if l.Limit == 0 {
		return
	}
	h.Set("X-Ratelimit-Limit-"+of, strconv.FormatInt(l.Limit, 10))
	h.Set("X-Ratelimit-Remaining-"+of, strconv.FormatInt(l.Remaining, 10))
	h.Set("X-Ratelimit-Reset-"+of, l.Reset.Round(time.Millisecond).String())
}
