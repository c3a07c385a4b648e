package selection

import (
	"errors"
	"net/http"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/load"
)

// StatusOverloaded is the status of an answer that says that all workers are
// busy, as Dynamo's frontend has it.
const StatusOverloaded = 529

// refused turns an error of a Router into a problem.
func refused(err error) *edge.Problem {
	p := edge.Failed(err)
	switch {
	case errors.Is(err, route.ErrOverloaded):
		p.Status, p.Field, p.Reason = StatusOverloaded, "model_name", edge.Overloaded
	case errors.Is(err, route.ErrNoWorker):
		p.Status, p.Field, p.Reason = http.StatusServiceUnavailable, "model_name", edge.NoWorker
	case errors.Is(err, load.ErrDuplicate):
		p.Status, p.Field, p.Reason = http.StatusConflict, "selection_id", edge.DuplicateID
	case errors.Is(err, route.ErrUnknownWorker):
		p.Status, p.Field, p.Reason = http.StatusNotFound, "worker_id", edge.UnknownWorker
	case errors.Is(err, route.ErrSettings), errors.Is(err, blockhash.ErrBlockSize):
		p.Status, p.Reason = http.StatusBadRequest, edge.OutOfRange
	default: // the request's context
		p.Status, p.Reason = http.StatusServiceUnavailable, edge.Cancelled
	}
	return p
}
