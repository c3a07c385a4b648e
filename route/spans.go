package route

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/kvatlas/kvatlas/internal/spans"
	"github.com/kvatlas/kvatlas/route/account"
)

// tell tells the caller's trace of a choice, if it is recorded: only when it is made, as
// one that all are too busy for is tried again and again. The lock is not held.
func (r *Router) tell(s *scratch, best, prefill *Answer) {
	if s.looked {
		s.trace.Past("lookup", s.times[0], s.times[1], attribute.Int("kvatlas.blocks", len(s.local)))
	}
	what := append(SpanFigures(&best.Account), spans.Worker("kvatlas.worker_id", best.Worker), attribute.Int("kvatlas.dp_rank", int(best.DPRank)))
	computes := best
	if prefill != nil {
		computes = prefill
		what = append(SpanFigures(&prefill.Account), what...)
		what = append(what, spans.Worker("kvatlas.prefill_worker_id", prefill.Worker), attribute.Int("kvatlas.prefill_dp_rank", int(prefill.DPRank)))
	}
	what = append(what, attribute.Float64("kvatlas.predicted_ms", ms(computes.First)))
	if computes.Decision != "" {
		what = append(what, attribute.String("kvatlas.decision_id", computes.Decision))
	}
	s.trace.Past("choice", s.times[1], r.cfg.Now(), what...)
}

// SpanFigures are what of a prompt was to be found cached, as attributes of a span.
func SpanFigures(c *account.Choice) []attribute.KeyValue {
	if !c.Known {
		return nil
	}
	what := append(make([]attribute.KeyValue, 0, 8), attribute.Int("kvatlas.prompt_tokens", c.Prompt),
		attribute.Int("kvatlas.reachable_tokens", c.Reachable), attribute.Int("kvatlas.selected_tokens", c.Selected))
	if c.Why != account.NoShortfall {
		what = append(what, attribute.String("kvatlas.not_selected", c.Why.String()))
	}
	return what
}
