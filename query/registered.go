package query

import (
	"context"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

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
	Heard     time.Time     // when it was last heard how the stream is; zero: it has none
	LastError string        // "" if there was none
	LastSeen  time.Time     // zero: never
	AskNext   time.Time     // its publisher is not asked for what is missing before; zero: at once
	// Counts returns what was counted of the rank since this process started, by
	// name; nil: nothing.
	Counts func() map[string]uint64
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
