package proxy

import (
	"net/http"
	"slices"

	"github.com/kvatlas/kvatlas/internal/program/secure"
)

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
