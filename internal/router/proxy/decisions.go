package proxy

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/internal/router/decisions"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/account"
)

const (
	pathDecisions = decisions.Path
	pathDecision  = pathDecisions + "/{id}"
)

// headerReceipt tells trusted callers what the choice of a worker went by, as a dictionary
// of RFC 9651.
const headerReceipt = prefix + "Receipt"

// receipt is the header's value.
func receipt(pair *route.Pair) string {
	best := &pair.Decode
	if pair.Prefill != nil {
		best = pair.Prefill // who computes the prompt
	}
	b := make([]byte, 0, 160)
	b = append(b, `worker="`...)
	b = strconv.AppendUint(b, best.Worker, 10)
	b = append(b, `", rank=`...)
	b = strconv.AppendUint(b, uint64(best.DPRank), 10)
	a := &best.Account
	number := func(name string, v int) {
		b = append(append(append(b, ", "...), name...), '=')
		b = strconv.AppendInt(b, int64(v), 10)
	}
	if a.Known {
		number("prompt", a.Prompt)
		number("reachable", a.Reachable)
		number("selected", a.Selected)
		if best.Pull.Tokens > 0 {
			number("pull", best.Pull.Tokens)
			b = append(b, `, pull-from="`...)
			b = append(strconv.AppendUint(b, best.Pull.From.Worker, 10), '"')
		}
		if a.Estimated {
			b = append(b, ", estimated"...)
		}
		if a.Why != account.NoShortfall {
			b = append(append(append(b, `, not-selected="`...), a.Why.String()...), '"')
		}
	}
	b = append(b, ", predicted-ms="...)
	b = strconv.AppendFloat(b, float64(best.First)/float64(time.Millisecond), 'f', 1, 64)
	if best.Decision != "" {
		b = append(append(append(b, `, decision="`...), best.Decision...), '"')
	}
	return string(b)
}

// decisions answers GET /v1/decisions.
func (p *Proxy) decisions(w http.ResponseWriter, r *http.Request) {
	p.giveTime(w)
	if no := decisions.List(w, r, p.cfg.Decisions, tenantOf(r), p.fleet.ModelsOf); no != nil {
		p.refuse(w, r, refuse(no.Status, no.Reason, no.Message))
	}
}

// oneDecision answers GET /v1/decisions/{id}.
func (p *Proxy) oneDecision(w http.ResponseWriter, r *http.Request) {
	p.giveTime(w)
	if no := decisions.One(w, p.cfg.Decisions, tenantOf(r), strings.TrimPrefix(r.URL.Path, pathDecisions+"/")); no != nil {
		p.refuse(w, r, refuse(no.Status, no.Reason, no.Message))
	}
}
