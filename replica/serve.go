package replica

import (
	"cmp"
	"context"
	"net/http"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/query"
)

// Serve returns a server of the index's routes, for its own port or as the Handler of
// another's. Without settings it has their defaults; checks are further conditions of
// its readiness. Close ends what it has served until then; what is served later has ended.
func (r *Replica) Serve(cfg query.Config, access *secure.Access, checks ...edge.Check) (*query.Server, error) {
	var behind func() string
	if r.share.Of > 0 { // who asks several says of whom nothing is known
		behind = func() string { return cmp.Or(r.Behind(), r.Silent()) }
	}
	return r.serve(cfg, access, behind, append([]edge.Check{{Name: "ingest", Reason: r.Behind}}, checks...))
}

// ServeBeside is Serve for a program that may be ready before the index is: that the index is behind is
// shown, and is for checks to judge. While withheld says why, nobody is told what workers hold.
func (r *Replica) ServeBeside(cfg query.Config, access *secure.Access, withheld func() string, checks ...edge.Check) (*query.Server, error) {
	return r.serve(cfg, access, withheld, append([]edge.Check{{Name: "ingest", Reason: r.Behind, Note: true}}, checks...))
}

func (r *Replica) serve(cfg query.Config, access *secure.Access, behind func() string, checks []edge.Check) (*query.Server, error) {
	s, err := query.New(cfg, query.Deps{
		Behind: behind, Share: r.share, Shares: r.shares, Stale: r.Stale,
		Index: query.Shards{Set: r.set}, Registry: r.registered, Streams: r.streams, At: r.at, Access: access, Log: r.log,
		Metrics: r.cfg.Metrics, Tracer: r.cfg.Tracer, Progress: r.Progress,
		Checks: append(checks, edge.Check{Name: "memory", Reason: r.full, Note: true}, edge.Check{Name: "streams", Reason: r.refused, Note: true},
			edge.Check{Name: "registry", Reason: r.cutOff, Note: true},
			edge.Check{Name: "shares", Reason: r.Away, Note: true}, edge.Check{Name: "workers", Reason: r.doubtful, Note: true},
			edge.Check{Name: "workers_file", Reason: r.unlisted, Note: true}),
	})
	if err != nil {
		return nil, err
	}
	r.serving.Lock()
	closed := r.closed
	r.servers = append(r.servers, s)
	r.serving.Unlock()
	if closed {
		return s, s.Shutdown(context.Background()) // it has no connection to wait for
	}
	return s, nil
}

// Handler returns the index's routes: what is held, who is registered, readiness,
// metrics, dumps. They let everybody ask: they are for a port that only those can
// reach who run the program.
func (r *Replica) Handler() (http.Handler, error) {
	s, err := r.Serve(query.Config{}, nil)
	if err != nil {
		return nil, err
	}
	return s.Handler(), nil
}
