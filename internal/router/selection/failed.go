package selection

import (
	"time"

	"github.com/kvatlas/kvatlas/route"
)

// maxRetryAfter bounds what a worker may say of itself, in seconds; the router's own
// bound is far lower.
const maxRetryAfter = 1 << 20

// failed is the body of POST …/failed: why a worker did not serve a request.
type failed struct {
	route.Failure
	stage    route.Stage
	hasStage bool
}

func (f *failed) fields(takes fields) {
	takes["full"] = func(o *object) { f.Full = o.bool() }
	takes["retry_after_seconds"] = func(o *object) { f.RetryAfter = time.Duration(o.float(0, maxRetryAfter) * float64(time.Second)) }
	takes["phase"] = func(o *object) { f.stage, f.hasStage = o.phase(), true }
}

// tell tells it of the reservation, of all its phases if none is named. The reservation
// stays until it is freed.
func (f *failed) tell(r *route.Router, id string) {
	for _, stage := range [...]route.Stage{route.Whole, route.PrefillStage, route.DecodeStage} {
		if !f.hasStage || stage == f.stage {
			r.Failed(id, stage, f.Failure)
		}
	}
}
