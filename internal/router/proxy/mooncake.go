package proxy

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"

	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/route"
)

// vLLM's MooncakeConnector (read in 0.33.0): both engines get the request at the same time, with
// one transfer_id. The decode engine asks the prefill engine's bootstrap server for the engine
// that it is told, and pulls.

// prefillMooncake sends the request to the prefill worker while it goes to the decode
// worker, too.
func (p *Proxy) prefillMooncake(ctx context.Context, r *http.Request, q *call, e *fleet.Engine, best *route.Answer, decode *fleet.Engine, giveUp func()) (*prefill, error) {
	engine, err := e.ConnectorID(ctx, p.client, best.DPRank)
	if err != nil {
		if ctx.Err() == nil { // else the client has gone, which nobody is to blame for
			q.m.Router.Failed(q.id, route.PrefillStage, route.Failure{})
		}
		return nil, fmt.Errorf("%w: %w", errPrefill, err)
	}
	name := transferID()
	add := vllmPrefill + q.api.one
	if q.completion {
		add += tokensToo
	}
	g := p.pass(q, e)
	ask, err := splice(q.data, slices.Concat(vllmReplaced, g.drop), []byte(add),
		g.paramsMember(q.sourceOf(best).beside(`{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"`+name+`"}`)), g.add)
	if err != nil {
		return nil, err
	}
	params := `{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"` + name + `","remote_bootstrap_addr":`
	params += string(appendJSON(nil, e.BootstrapURL())) + `,"remote_engine_id":` + string(appendJSON(nil, engine)) + "}"
	g = p.pass(q, decode)
	give, err := splice(q.data, append([]string{paramsField}, g.drop...), g.paramsMember([]byte(params)), g.add)
	if err != nil {
		return nil, err
	}
	f := &prefill{data: q.pieces(give), from: e}
	p.prefillMeanwhile(ctx, r, q, e, best, q.pieces(ask), f, giveUp)
	return f, nil
}

// transferID returns a name that no other transfer under way has.
func transferID() string {
	b := binary.LittleEndian.AppendUint64(nil, rand.Uint64())
	return "kvatlas-" + hex.EncodeToString(binary.LittleEndian.AppendUint64(b, rand.Uint64()))
}
