package query

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
)

// Registry is what a Server needs of a registry.Registry. Its methods are safe
// for concurrent use.
type Registry interface {
	// Snapshot returns the workers, sorted; with departed those too that left.
	Snapshot(departed bool) []registry.Entry
	// Name returns the name that a worker is registered by; "" for none.
	Name(registry.Key) string
	// IsDrained reports whether the worker, registered or not, gets no requests.
	IsDrained(worker uint64) bool
	// ServeRegister, ServeUnregister, ServeDrain and ServeResume answer a body;
	// ServeWorkers lists.
	ServeRegister(ctx context.Context, body []byte) (status int, answer []byte)
	ServeUnregister(ctx context.Context, body []byte) (status int, answer []byte)
	ServeDrain(ctx context.Context, body []byte) (status int, answer []byte)
	ServeResume(ctx context.Context, body []byte) (status int, answer []byte)
	ServeWorkers(model, group string) []byte
}

// Contested is the State of a rank that two processes publish as.
const Contested = "contested"

// Stream is how the reading of one rank's events stands.
type Stream struct {
	Space event.Space
	shard.RankID
	// State is following, recovering, incomplete (something is missing since
	// the last full clear), truncated (the memory budget refused blocks),
	// Contested or departed.
	State     string
	Stale     bool          // something is missing that its publisher may have
	LastID    uint64        // of the last event applied
	Lag       uint64        // messages of its space that are not applied yet
	LagTime   time.Duration // age of the oldest of them
	LastError string        // "" if there was none
	LastSeen  time.Time     // zero: never
	AskNext   time.Time     // its publisher is not asked for what is missing before; zero: at once
	// Counts is what was counted of the rank since this process started, by
	// name.
	Counts map[string]uint64
}

// answerRegister answers POST /register, answerUnregister POST /unregister, in
// the forms of Mooncake's RFC 1403 and of Dynamo's standalone indexer.
func (s *Server) answerRegister(ctx *fasthttp.RequestCtx, v *view) *edge.Problem {
	return s.answerRegistration(ctx, v, v.registry.ServeRegister)
}

func (s *Server) answerUnregister(ctx *fasthttp.RequestCtx, v *view) *edge.Problem {
	return s.answerRegistration(ctx, v, v.registry.ServeUnregister)
}

// answerDrain answers POST /drain, answerResume POST /resume: of a worker in all its
// spaces, so not for tenants.
func (s *Server) answerDrain(ctx *fasthttp.RequestCtx, v *view) *edge.Problem {
	return s.answerRegistration(ctx, v, v.registry.ServeDrain)
}

func (s *Server) answerResume(ctx *fasthttp.RequestCtx, v *view) *edge.Problem {
	return s.answerRegistration(ctx, v, v.registry.ServeResume)
}

func (s *Server) answerRegistration(ctx *fasthttp.RequestCtx, v *view, serve func(context.Context, []byte) (int, []byte)) *edge.Problem {
	body, _, p := s.body(ctx, false)
	if p == nil {
		p = noArguments(ctx)
	}
	if p != nil {
		return p
	}
	if v.tenant != nil && namesOtherGroup(body, *v.tenant) {
		return edge.Refuse(fasthttp.StatusForbidden, "routing_group", edge.Forbidden, "the token is for the group "+strconv.Quote(*v.tenant)+" only; name it")
	}
	// Not ctx: a context that is derived from fasthttp's is read by a goroutine
	// that may outlive the request, in a race with the server's shutdown
	// (fasthttp 1.74, RequestCtx.Done). The registry bounds its own wait.
	status, answer := serve(context.Background(), body)
	if status >= fasthttp.StatusBadRequest {
		s.obs.refused(edge.Registration)
	}
	ctx.SetStatusCode(status)
	s.json(ctx, append(s.buffer(ctx), answer...))
	return nil
}

// answerListWorkers answers GET /workers?model_name=…&routing_group=….
func (s *Server) answerListWorkers(ctx *fasthttp.RequestCtx, v *view) *edge.Problem {
	if p := noArguments(ctx, "model_name", "routing_group"); p != nil {
		return p
	}
	args := ctx.QueryArgs()
	answer := v.registry.ServeWorkers(string(args.Peek("model_name")), string(args.Peek("routing_group")))
	s.json(ctx, append(s.buffer(ctx), answer...))
	return nil
}

// workersAnswer is the answer of GET /v1/workers.
type workersAnswer struct {
	Spaces []client.WorkerSpace `json:"spaces"`
}

// listWorkers returns what every worker holds and how it is registered. An
// empty model means every model.
func (s *Server) listWorkers(v *view, model string) []byte {
	entries := make(map[event.Space][]registry.Entry)
	var spaces []event.Space
	if v.registry != nil {
		for _, e := range v.registry.Snapshot(true) {
			if entries[e.Key.Space] == nil {
				spaces = append(spaces, e.Key.Space)
			}
			entries[e.Key.Space] = append(entries[e.Key.Space], e)
		}
	}
	streams := s.streamsByRank()
	for _, sp := range v.index.Spaces() {
		if entries[sp] == nil {
			spaces = append(spaces, sp)
		}
	}
	slices.SortFunc(spaces, func(a, b event.Space) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.BlockSize, b.BlockSize), cmp.Compare(a.Group, b.Group))
	})
	answer := workersAnswer{Spaces: []client.WorkerSpace{}}
	for _, sp := range spaces {
		if model != "" && model != sp.Model {
			continue
		}
		list := client.WorkerSpace{Model: sp.Model, Group: sp.Group, BlockSize: int(sp.BlockSize), Workers: []client.Worker{}}
		byID := make(map[uint64]*client.Worker)
		var ids []uint64
		worker := func(id uint64) *client.Worker {
			if byID[id] == nil {
				ids = append(ids, id)
				byID[id] = &client.Worker{ID: id, State: "unregistered", Ranks: []client.WorkerRank{},
					Drained: v.registry != nil && v.registry.IsDrained(id)}
			}
			return byID[id]
		}
		for i := range entries[sp] {
			w := worker(entries[sp][i].Key.Worker)
			w.State, w.Info = entries[sp][i].State.String(), registrationOf(&entries[sp][i])
		}
		if space := v.index.Space(sp); space != nil {
			for _, h := range space.Ranks() {
				w := worker(h.Worker)
				w.Ranks = append(w.Ranks, client.WorkerRank{
					DPRank: h.DPRank, Device: uint64(h.Held[event.Device]), HostPinned: uint64(h.Held[event.HostPinned]),
					Disk: uint64(h.Held[event.Disk]), External: uint64(h.Held[event.External]), Inferred: uint64(h.Inferred),
					Stream: streams[rankKey{sp, h.RankID}],
				})
				for _, n := range h.Held {
					w.Blocks += uint64(n)
				}
				if st := streams[rankKey{sp, h.RankID}]; st != nil && st.State == Contested {
					w.Conflict = st.LastError
				}
			}
		}
		slices.Sort(ids)
		for _, id := range ids {
			list.Workers = append(list.Workers, *byID[id])
		}
		answer.Spaces = append(answer.Spaces, list)
	}
	return edge.JSON(answer)
}

// rankKey names a rank of a space.
type rankKey struct {
	space event.Space
	rank  shard.RankID
}

func (s *Server) streamsByRank() map[rankKey]*client.Stream {
	if s.deps.Streams == nil {
		return nil
	}
	byRank := make(map[rankKey]*client.Stream)
	for _, st := range s.deps.Streams() {
		info := &client.Stream{State: st.State, Stale: st.Stale, LastID: st.LastID, Lag: st.Lag, LagSeconds: st.LagTime.Seconds(), LastError: st.LastError, Counts: st.Counts}
		if !st.LastSeen.IsZero() {
			info.LastSeen = &st.LastSeen
		}
		if !st.AskNext.IsZero() {
			info.AskNext = &st.AskNext
		}
		byRank[rankKey{st.Space, st.RankID}] = info
	}
	return byRank
}

func registrationOf(e *registry.Entry) *client.Registration {
	r := &client.Registration{
		Name: e.Name, Sources: []string{}, Role: string(e.Role), Transport: string(e.Transport), Ranks: e.Ranks, Tiers: e.Tiers,
		TotalBlocks: e.TotalBlocks, HashScheme: e.HashScheme, EngineScheme: e.EngineScheme, LeaseSeconds: e.Lease.Seconds(),
		Mismatch: e.Mismatch, Conflict: e.Conflict, LeftBy: e.LeftBy.String(), DrainedBy: e.DrainedBy,
	}
	for _, source := range []struct {
		is   bool
		name string
	}{{e.Announced, "announced"}, {e.HTTP, "http"}, {e.Static, "static"}} {
		if source.is {
			r.Sources = append(r.Sources, source.name)
		}
	}
	if e.Incarnation != 0 {
		r.Incarnation = strconv.FormatUint(e.Incarnation, 10)
	}
	if !e.LastSeen.IsZero() {
		age := max(0, time.Since(e.LastSeen).Seconds())
		r.LeaseAge = &age
	}
	if !e.Left.At.IsZero() {
		r.LeftAt = &e.Left.At
	}
	if e.Drained {
		r.DrainedSince = &e.DrainedSince
	}
	for rank, l := range e.Listeners {
		if r.Listeners == nil {
			r.Listeners = make(map[uint32]client.Listener)
		}
		r.Listeners[rank] = client.Listener{Endpoint: l.Endpoint, Status: l.Status, LastError: l.Error}
	}
	return r
}
