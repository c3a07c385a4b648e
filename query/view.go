package query

import (
	"encoding/json"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/registry"
)

// view is what a caller may see and change: everything, or of a tenant the
// spaces of its routing group only. Routes know the index and the registry
// through it, so none can forget whom it answers.
type view struct {
	index    Index
	registry Registry // nil: there is none, or it does not know yet
	tenant   *string  // nil: everything
}

// all returns the view of a caller who may see everything.
func (s *Server) all() *view {
	if v := s.whole.Load(); v != nil {
		return v
	}
	v := &view{index: s.deps.Index}
	if s.deps.Registry != nil {
		v.registry = s.deps.Registry()
	}
	if s.deps.Registry == nil || v.registry != nil {
		s.whole.Store(v) // there is no more to know
	}
	return v
}

// of returns the view of a tenant.
func (v *view) of(tenant string) *view {
	t := &view{index: tenantIndex{v.index, tenant}, tenant: &tenant}
	if v.registry != nil {
		t.registry = tenantRegistry{v.registry, tenant}
	}
	return t
}

// appendInstance appends what the indexer's routes call a worker, as a JSON string.
func (v *view) appendInstance(dst []byte, sp event.Space, worker uint64) []byte {
	if v.registry != nil {
		if name := v.registry.Name(registry.Key{Space: sp, Worker: worker}); name != "" {
			return appendString(dst, name)
		}
	}
	return append(appendUint(dst, `"`, worker), '"')
}

// tenantIndex is an Index of one group's spaces.
type tenantIndex struct {
	Index
	group string
}

func (x tenantIndex) Spaces() []event.Space {
	var own []event.Space
	for _, sp := range x.Index.Spaces() {
		if sp.Group == x.group {
			own = append(own, sp)
		}
	}
	return own
}

func (x tenantIndex) Space(id event.Space) Space {
	if id.Group != x.group {
		return nil
	}
	return x.Index.Space(id)
}

// tenantRegistry is a Registry of one group's workers.
type tenantRegistry struct {
	Registry
	group string
}

func (r tenantRegistry) Snapshot(departed bool) []registry.Entry {
	all := r.Registry.Snapshot(departed)
	own := all[:0]
	for _, e := range all {
		if e.Group == r.group {
			own = append(own, e)
		}
	}
	return own
}

func (r tenantRegistry) ServeWorkers(model, group string) []byte {
	if group != "" && registry.GroupOf(group) != r.group {
		return []byte("[]\n")
	}
	return r.Registry.ServeWorkers(model, registry.GroupName(r.group))
}

// namesOtherGroup reports whether a registration names a group that is not the
// tenant's, or leaves it open where that means every group.
func namesOtherGroup(body []byte, tenant string) bool {
	var named struct {
		Model  *string         `json:"model_name"`
		Group  *string         `json:"routing_group"`
		Tenant *string         `json:"tenant_id"`
		Worker json.RawMessage `json:"worker_id"`
		Own    string          `json:"group"`
	}
	if json.Unmarshal(body, &named) != nil {
		return false // the registry says what is wrong with it
	}
	if named.Worker != nil { // the form of a list of workers
		return named.Own != tenant
	}
	group := named.Tenant // of the RFC's form
	if named.Model != nil {
		group = named.Group
	}
	if group == nil {
		return tenant != ""
	}
	return registry.GroupOf(*group) != tenant
}
