package proxy

import (
	"log/slog"
	"slices"

	"github.com/kvatlas/kvatlas/route"
)

// Whether a prompt gets from a prefill worker to a decode worker is seen by what becomes of the request: the decode
// worker fails, and all of the request is served without a prefill worker; or it answers and says that it
// had not more of the prompt cached than its own. Which pairs are not made any more for that is the fleet's to say.

// lostPair is a pair of which the decode worker failed.
type lostPair struct {
	prefill, decode uint64
	blame           route.Blame // of the decode worker
	avoided         bool        // it is the last of those that are excluded
}

// asPair is for a failure of a pair's decode worker by its own word. It may be that the prompt did not come: vLLM's
// engines (0.33.0, kv_load_failure_policy) do not compute it then. So one worker is to do all of the request, another if
// there is one.
func (q *call) asPair(pair *route.Pair, f *failure) *failure {
	if pair.Prefill == nil || q.passage != nil {
		return f
	}
	switch f.retry {
	case whyStatus500, whyStatus5xx, whyNothing:
		f.whole, f.other = true, true
		q.lost = &lostPair{prefill: pair.Prefill.Worker, decode: pair.Decode.Worker, blame: f.blame}
	}
	return f
}

// unavoid lets the request go back to the decode worker that was to be avoided, for all of it; false: there is none.
func (q *call) unavoid() bool {
	if q.lost == nil || !q.lost.avoided {
		return false
	}
	q.lost.avoided = false
	q.options.Excluded = slices.DeleteFunc(slices.Clone(q.options.Excluded), func(id uint64) bool { return id == q.lost.decode })
	return true
}

// handedOver notes what a good answer tells of whether the prompt came from a prefill worker.
func (p *Proxy) handedOver(q *call, s *stream, pair *route.Pair, said usage) {
	switch {
	case q.tally.status >= 400 || s.judge.said == refuses:
	case pair.Prefill == nil:
		if q.lost != nil { // the request was good, then
			if q.lost.decode == pair.Decode.Worker {
				q.m.Router.Withdraw(q.lost.blame)
			}
			p.notHandedOver(q, q.lost.prefill, q.lost.decode, usageIn(nil))
		}
	case s.part.from == nil: // its engine says nothing else of it
		if q.passage == nil {
			p.fleet.HandedOver(q.m, pair.Prefill.Worker, pair.Decode.Worker, true)
		}
	case said.cached < 0 || said.prompt < 0:
	case said.cached+int(q.m.Space.BlockSize) >= said.prompt: // all of it, or what its own cache had
		p.obs.handedOver.Inc()
		p.fleet.HandedOver(q.m, pair.Prefill.Worker, pair.Decode.Worker, true)
	default:
		s.part.from.ForgetConnectors()
		p.notHandedOver(q, pair.Prefill.Worker, pair.Decode.Worker, said)
	}
}

func (p *Proxy) notHandedOver(q *call, prefill, decode uint64, said usage) {
	p.obs.handLost.Inc()
	p.fleet.HandedOver(q.m, prefill, decode, false)
	p.limit.Warn("hand_over", "a prompt did not come from the prefill worker that had computed it: it was computed once more",
		slog.Uint64("prefill_worker", prefill), slog.Uint64("decode_worker", decode), slog.Int("prompt", said.prompt), slog.Int("cached", said.cached), q.attr())
}
