package selection

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/load"
)

// The reasons of refusals; those of package query where it has them.
const (
	reasonMalformed   = "malformed_json"
	reasonUnknown     = "unknown_field"
	reasonDuplicate   = "duplicate_field"
	reasonType        = "wrong_type"
	reasonNegative    = "negative"
	reasonNotInteger  = "not_integer"
	reasonRange       = "out_of_range"
	reasonTooMany     = "too_many"
	reasonMissing     = "missing"
	reasonConflict    = "conflict"
	reasonModel       = "unknown_model"
	reasonGroup       = "unknown_group"
	reasonBlockSize   = "block_size_mismatch"
	reasonArgument    = "unknown_argument"
	reasonRoute       = "unknown_route"
	reasonMethod      = "method_not_allowed"
	reasonMediaType   = "unsupported_media_type"
	reasonTooLarge    = "body_too_large"
	reasonSelection   = "unknown_selection"
	reasonDuplicateID = "duplicate_selection"
	reasonWorker      = "unknown_worker"
	reasonOverloaded  = "overloaded"
	reasonNoWorker    = "no_worker"
	reasonCancelled   = "cancelled"
	reasonInternal    = "internal"
)

// StatusOverloaded is the status of an answer that says that all workers are
// busy, as Dynamo's frontend has it.
const StatusOverloaded = 529

// problem is why a request is refused.
type problem struct {
	status  int
	Field   string `json:"field"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	allow   string
}

func bad(field, reason, message string) *problem {
	return &problem{status: http.StatusBadRequest, Field: field, Reason: reason, Message: message}
}

// answer returns the problem's JSON form: an object that says which field, or
// for the frontend's routes a text.
func (p *problem) answer(text bool) Answer {
	var body any = map[string]any{"error": p}
	if text {
		body = map[string]any{"error": p.Field + ": " + p.Message}
	}
	return Answer{Status: p.status, Allow: p.allow, Body: encode(body), Reason: p.Reason}
}

func encode(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil { // numbers here are finite and texts always have a form
		return []byte(`{"error":"internal"}` + "\n")
	}
	return append(body, '\n')
}

// refused turns an error of a Router into a problem.
func refused(err error) *problem {
	p := &problem{status: http.StatusInternalServerError, Field: "request", Reason: reasonInternal, Message: err.Error()}
	switch {
	case errors.Is(err, route.ErrOverloaded):
		p.status, p.Field, p.Reason = StatusOverloaded, "model_name", reasonOverloaded
	case errors.Is(err, route.ErrNoWorker):
		p.status, p.Field, p.Reason = http.StatusServiceUnavailable, "model_name", reasonNoWorker
	case errors.Is(err, load.ErrDuplicate):
		p.status, p.Field, p.Reason = http.StatusConflict, "selection_id", reasonDuplicateID
	case errors.Is(err, route.ErrUnknownWorker):
		p.status, p.Field, p.Reason = http.StatusNotFound, "worker_id", reasonWorker
	case errors.Is(err, route.ErrSettings), errors.Is(err, blockhash.ErrBlockSize):
		p.status, p.Reason = http.StatusBadRequest, reasonRange
	default: // the request's context
		p.status, p.Reason = http.StatusServiceUnavailable, reasonCancelled
	}
	return p
}

func tooMany(field string, limit int) *problem {
	return bad(field, reasonTooMany, "more than "+strconv.Itoa(limit)+" elements, the limit of this server")
}
