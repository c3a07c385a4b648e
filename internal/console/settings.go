package console

import (
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// settings is the answer of GET api/settings.
type settings struct {
	Program  string         `json:"program"`
	Version  obs.Version    `json:"version"`
	Started  int64          `json:"started_ms"`
	Ready    bool           `json:"ready"`
	Checks   []check        `json:"checks"`
	Settings []conf.InForce `json:"settings"` // null: the caller may not see them
	Say      string         `json:"say,omitempty"`
}

type check struct {
	Name   string  `json:"name"`
	OK     bool    `json:"ok"`
	Note   bool    `json:"note"`   // it does not keep the program from being ready
	Reason *string `json:"reason"` // null where it is met, or where the caller may not see it
}

// settings answers GET api/settings. Settings are for operators, as at the admin port; what
// checks say may name workers, and is not for tenants.
func (c *Console) settings(r *request) (*edge.Reply, *edge.Problem) {
	a := settings{Program: c.cfg.Program, Version: obs.ReadVersion(), Started: c.cfg.started.UnixMilli(), Checks: []check{}}
	a.Ready, _ = ready(c.cfg.Health, true)
	if h := c.cfg.Health; h != nil {
		for _, k := range h.Checks {
			why := k.Reason()
			one := check{Name: k.Name, OK: why == "", Note: k.Note}
			if r.Tenant == nil {
				one.Reason = some(why)
			}
			a.Checks = append(a.Checks, one)
		}
	}
	switch {
	case c.cfg.Declared == nil:
		a.Say = "this program has no settings of its own"
	case r.Tenant != nil || r.Role < secure.Operator:
		a.Say = "settings need an operator's token that is no tenant's"
	default:
		a.Settings = c.cfg.Declared.InForce()
	}
	return edge.ReplyJSON(a), nil
}
