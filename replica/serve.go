package replica

import (
	"cmp"
	"net/http"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/query"
)

// Serve returns a server of the index's routes, for its own port or as the Handler of
// another's. Without settings it has their defaults; checks are further conditions of
// its readiness. Close ends what it has served until then.
func (r *Replica) Serve(cfg query.Config, access *secure.Access, checks ...edge.Check) (*query.Server, error) {
	var behind func() string
	if r.share.Of > 0 { // who asks several says of whom nothing is known
		behind = func() string { return cmp.Or(r.Behind(), r.Silent()) }
	}
	s, err := query.New(cfg, query.Deps{
		Behind: behind, Share: r.share, Shares: r.shares, Stale: r.Stale,
		Index: query.Shards{Set: r.set}, Registry: r.registered, Streams: r.streams, At: r.at, Access: access, Log: r.log,
		Metrics: r.cfg.Metrics, Tracer: r.cfg.Tracer, Progress: r.Progress,
		Checks: append([]edge.Check{{Name: "ingest", Reason: r.Behind}, {Name: "memory", Reason: r.full, Note: true}, {Name: "streams", Reason: r.refused, Note: true}, {Name: "shares", Reason: r.Away, Note: true}, {Name: "workers", Reason: r.doubtful, Note: true},
			{Name: "workers_file", Reason: r.unlisted, Note: true}}, checks...),
	})
	if err != nil {
		return nil, err
	}
	r.serving.Lock()
	r.servers = append(r.servers, s)
	r.serving.Unlock()
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
