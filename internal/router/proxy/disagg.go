package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/upstream"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
)

// A prompt may be computed on a prefill worker and gone on with on a decode
// worker. Whatever keeps the prefill worker from its part, the decode worker then
// gets the request as it came, and does all of it.

// Fields by which vLLM's engines are told their parts: those of its NIXL
// connector, in the order of its own proxies: the prefill engine is asked for one
// token, and gives what the decode engine needs.
const (
	paramsField = "kv_transfer_params"
	// A prompt whose first token ends it is given to nobody by vLLM's Mooncake and MoRIIO connectors (0.33.0: only who ends at
	// its length is): the decode worker would wait for it, for 480 s by default. So nothing ends it.
	vllmPrefill = `"stream":false,"ignore_eos":true`
	vllmParams  = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
	maxParams   = 16 << 20 // bytes of a prefill engine's answer
	tokensToo   = `,"max_completion_tokens":1`
	oneToken    = `,"max_tokens":1`
	oneOutput   = `,"max_output_tokens":1,"store":false` // nobody asks for what was kept there
)

var (
	vllmReplaced   = []string{"stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "store", "ignore_eos", "stop_token_ids", paramsField}
	sglangReplaced = []string{"bootstrap_host", "bootstrap_port", "bootstrap_room"}
)

// errPrefill says that a prefill worker did not do its part.
var errPrefill = errors.New("the prefill worker does not do its part")

// errNothing says that it answers without a word, or with an error and status 200.
var errNothing = errors.New("its answer says nothing")

// errEnds says that its stream ends before it is whole.
var errEnds = errors.New("its answer ends without its API's end")

// errRefused says that it calls the request wrong, which it may be.
var errRefused = errors.New("the prefill worker refuses the request")

// prefillStatus says that it answers with another status than 200. It is an errPrefill.
type prefillStatus struct {
	status int
	fault  bool // the request itself may be at fault, which the decode worker's answer tells
	blame  route.Blame
}

func (s *prefillStatus) Error() string { return fmt.Sprintf("%v: it answers %d", errPrefill, s.status) }

func (s *prefillStatus) Unwrap() error { return errPrefill }

// clientsFault reports whether an answer says that the request is wrong, and would be
// so everywhere.
func clientsFault(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// prefill is the part of a prefill worker in one attempt.
type prefill struct {
	data   upstream.Payload   // what the decode worker gets
	done   chan struct{}      // closed when a part that goes on beside it is over; nil without
	cancel context.CancelFunc // of that
	first  atomic.Int32       // what came first: prefillUnsaid, prefillFailed or decodeBegan. Set once
	why    error              // valid with prefillFailed
	last   error              // of the part that goes on beside, whatever came first; to be read behind end
	from   *fleet.Engine      // the prefill worker, where what the decode worker says tells whether the prompt came; else nil
}

// Where both parts run at once, either the prefill worker fails first, and the decode worker
// has to do all of it anew, or the decode worker has something to say: then it has the prompt,
// and what becomes of the prefill worker's answer is nothing to its own.
const (
	prefillUnsaid int32 = iota
	prefillFailed
	decodeBegan
)

// fail notes that the prefill worker failed; false: the answer has begun before.
func (f *prefill) fail(err error) bool {
	f.why = err // which nobody reads before
	return f.first.CompareAndSwap(prefillUnsaid, prefillFailed)
}

// failed reports whether the prefill worker failed before the answer began.
func (f *prefill) failed() bool { return f.first.Load() == prefillFailed }

// begin notes that the answer has begun; false: the prefill worker failed before.
func (f *prefill) begin() bool {
	return f.done == nil || f.first.CompareAndSwap(prefillUnsaid, decodeBegan) || !f.failed()
}

// end ends what still goes on.
func (f *prefill) end() {
	if f.done != nil {
		f.cancel()
		<-f.done
	}
}

// prefillFirst starts the part of the pair's prefill worker: vLLM's has done it
// when this returns, SGLang's goes on, and calls giveUp if it fails.
// decode is the engine that goes on.
func (p *Proxy) prefillFirst(ctx context.Context, r *http.Request, q *call, best *route.Answer, decode *fleet.Engine, giveUp func()) (*prefill, error) {
	e := q.m.Engine(best.Worker)
	if e == nil {
		return nil, fmt.Errorf("%w: it has just left", errPrefill)
	}
	if why := q.m.Apart(e, decode); why != "" { // since the choice
		return nil, fmt.Errorf("%w: decode worker %d and it cannot hand prompts over: %s", errPrefill, decode.ID, why)
	}
	switch e.Transfer {
	case registry.TransferSGLang:
		return p.prefillBeside(ctx, r, q, e, best, decode, giveUp)
	case registry.TransferMooncake:
		return p.prefillMooncake(ctx, r, q, e, best, decode, giveUp)
	case registry.TransferVLLM:
	}
	add := vllmPrefill + q.api.one
	if q.completion {
		add += tokensToo
	}
	g := p.pass(q, e)
	ask, err := splice(q.data, slices.Concat(vllmReplaced, g.drop), []byte(add), g.paramsMember(q.sourceOf(best).beside(vllmParams)), g.add)
	if err != nil {
		return nil, err
	}
	answer, err := p.askPrefill(ctx, r, q, e, best, q.pieces(ask), maxParams)
	if err != nil {
		return nil, err
	}
	given, err := member(answer, paramsField)
	switch {
	case err != nil:
		q.m.Router.Failed(q.id, route.PrefillStage, route.Failure{})
		return nil, fmt.Errorf("%w: its answer is no JSON object", errPrefill)
	case given == nil:
		q.m.Router.Failed(q.id, route.PrefillStage, route.Failure{})
		return nil, fmt.Errorf("%w: it answers without %s", errPrefill, paramsField)
	}
	q.m.Router.FreeStage(q.id, route.PrefillStage)
	p.queue.wake(q.m)
	g = p.pass(q, decode)
	give, err := splice(q.data, append([]string{paramsField}, g.drop...), g.paramsMember(given), g.add)
	return &prefill{data: q.pieces(give)}, err
}

// prefillBeside sends the request to the prefill worker while it goes to the
// decode worker, too.
func (p *Proxy) prefillBeside(ctx context.Context, r *http.Request, q *call, e *fleet.Engine, best *route.Answer, decode *fleet.Engine, giveUp func()) (*prefill, error) {
	host, port, err := net.SplitHostPort(e.Bootstrap)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPrefill, err)
	}
	// Rooms are i64 at the engine, and must differ between requests under way.
	add := `"bootstrap_host":` + string(appendJSON(nil, host)) + `,"bootstrap_port":` + port + `,"bootstrap_room":` + strconv.FormatInt(rand.Int64(), 10)
	var g givenIDs
	if first := p.pass(q, e); first.drop != nil {
		g = p.pass(q, decode) // both get the same
	}
	give, err := splice(q.data, slices.Concat(sglangReplaced, g.drop), []byte(add), g.add)
	if err != nil {
		return nil, err
	}
	f := &prefill{data: q.pieces(give)}
	p.prefillMeanwhile(ctx, r, q, e, best, f.data, f, giveUp)
	return f, nil
}

// prefillMeanwhile has the prefill worker do its part, which f is told of, while the decode worker is at its own.
func (p *Proxy) prefillMeanwhile(ctx context.Context, r *http.Request, q *call, e *fleet.Engine, best *route.Answer, ask upstream.Payload, f *prefill, giveUp func()) {
	f.done = make(chan struct{})
	ctx, f.cancel = context.WithCancel(ctx)
	go func() { // ends with f.end
		defer close(f.done)
		if _, err := p.askPrefill(ctx, r, q, e, best, ask, maxParams); err != nil {
			f.last = err
			switch {
			case ctx.Err() != nil: // others have given up
			case f.fail(err):
				giveUp()
			default:
				p.limit.Warn("prefill_late", "a prefill worker's answer failed; that of the decode worker goes on", errAttr(err), q.attr())
			}
			return
		}
		q.m.Router.FreeStage(q.id, route.PrefillStage)
		p.queue.wake(q.m)
	}()
}

// askPrefill sends a request to a prefill worker and returns its whole answer, or
// the end of a streamed one.
func (p *Proxy) askPrefill(ctx context.Context, r *http.Request, q *call, e *fleet.Engine, best *route.Answer, data upstream.Payload, limit int64) (answer []byte, err error) {
	whole, router := ctx, q.m.Router
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := new(wait)
	p.await(t, q, route.PrefillStage, best, cancel)
	defer t.stop()
	broken := func(format string, err error) error {
		if whole.Err() == nil { // else others have given up
			router.Failed(q.id, route.PrefillStage, route.Failure{})
		}
		return fmt.Errorf("%w: "+format, errPrefill, err)
	}
	ctx, asked := askEngine(ctx, route.PrefillStage, best)
	defer func() { asked.endPrefill(err) }()
	req := p.engineRequest(ctx, r, data, e, best.DPRank)
	q.sourceOf(best).show(req.Header)
	resp, err := p.client.RoundTrip(req)
	if err != nil {
		return nil, broken("%w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	answer, err = io.ReadAll(io.LimitReader(resp.Body, limit))
	switch {
	case err != nil:
		return nil, broken("its answer breaks off: %w", err)
	case clientsFault(resp.StatusCode):
		if p.cfg.Retry500 && q.generates {
			if blame := router.Failed(q.id, route.PrefillStage, route.Failure{Wrong: true}); !blame.None() {
				return nil, &prefillStatus{status: resp.StatusCode, fault: true, blame: blame}
			}
		}
		return nil, fmt.Errorf("%w with status %d", errRefused, resp.StatusCode)
	case resp.StatusCode != http.StatusOK:
		f, why := judgeStatus(resp.StatusCode, resp.Header, time.Now())
		said := &prefillStatus{status: resp.StatusCode, fault: p.cfg.Retry500 && (why == whyStatus500 || why == whyRefused)}
		if why != "" && (why != whyRefused || said.fault) {
			said.blame = router.Failed(q.id, route.PrefillStage, f)
		}
		return nil, said
	}
	j := newJudge(q, resp)
	j.see(answer)
	ends := j.ending(q.api.read)
	ends.see(answer)
	switch said := j.end(); {
	case said == fails:
		return nil, broken("%w", errNothing)
	case said == refuses:
		return nil, fmt.Errorf("%w with an error in status 200", errRefused)
	case int64(len(answer)) < limit && ends.broken(answer):
		return nil, broken("%w", errEnds)
	}
	router.Succeeded(q.id, route.PrefillStage)
	if said := usageIn(answer); q.known && said.cached >= 0 {
		p.compareCached(q, best, route.PrefillStage, said)
	}
	return answer, nil
}

// notPrefilled makes the request go to a decode worker alone, unless its client
// is gone.
func (p *Proxy) notPrefilled(r *http.Request, q *call, err error) *failure {
	if r.Context().Err() != nil {
		return clientGone()
	}
	f := &failure{refusal: refuse(http.StatusBadGateway, "engine_unreachable", "the prefill worker failed"), whole: true}
	q.refusedBefore = errors.Is(err, errRefused)
	if said := (*prefillStatus)(nil); errors.As(err, &said) {
		wrong := clientsFault(said.status)
		f.fault, f.blame, q.doubted = said.fault, said.blame, q.doubted || wrong
		q.refusedBefore = wrong // also where its engine says so of all that it gets
	}
	if !q.refusedBefore {
		p.prefillFailed(q, err)
	}
	return f
}

func (p *Proxy) prefillFailed(q *call, err error) {
	p.obs.prefillFailed.Inc()
	p.limit.Warn("prefill", "a prefill worker failed; a decode worker does all of it", errAttr(err), q.attr())
}
