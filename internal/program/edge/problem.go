package edge

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
)

// The reasons for which a request is refused; labels of metrics and values of
// "reason" in error answers.
const (
	MalformedJSON     = "malformed_json"
	UnknownField      = "unknown_field"
	DuplicateField    = "duplicate_field"
	WrongType         = "wrong_type"
	Negative          = "negative"
	NotInteger        = "not_integer"
	OutOfRange        = "out_of_range"
	TooMany           = "too_many"
	Missing           = "missing"
	Conflict          = "conflict"
	UnknownModel      = "unknown_model"
	UnknownGroup      = "unknown_group"
	BlockSize         = "block_size_mismatch"
	UnknownArgument   = "unknown_argument"
	UnknownRoute      = "unknown_route"
	Method            = "method_not_allowed"
	MediaType         = "unsupported_media_type"
	Encoding          = "unsupported_encoding"
	BodyTooLarge      = "body_too_large"
	HeaderTooLarge    = "header_too_large"
	Timeout           = "timeout"
	MalformedRequest  = "malformed_request"
	MalformedEncoding = "malformed_encoding"
	Unauthenticated   = "unauthenticated"
	Forbidden         = "forbidden"
	Busy              = "too_many_requests"
	NotReady          = "not_ready"
	Internal          = "internal"
	Registration      = "registration"
	Connections       = "too_many_connections"
	Address           = "too_many_connections_of_address"
	UnknownSelection  = "unknown_selection"
	DuplicateID       = "duplicate_selection"
	UnknownWorker     = "unknown_worker"
	Overloaded        = "overloaded"
	NoWorker          = "no_worker"
	Cancelled         = "cancelled"
	UnknownNode       = "unknown_node"
	UnknownDecision   = "unknown_decision"
)

// Problem is why a request is refused.
type Problem struct {
	Status  int    `json:"-"`
	Field   string `json:"field"`   // the field at fault, as in "hashes[3]"; or a part of the request: body, path, …
	Reason  string `json:"reason"`  // one word of a fixed list
	Message string `json:"message"` // for people: what is wrong and what to send instead
}

// Refuse returns a problem.
func Refuse(status int, field, reason, message string) *Problem {
	return &Problem{status, field, reason, message}
}

// Bad returns a problem with status 400.
func Bad(field, reason, message string) *Problem {
	return &Problem{http.StatusBadRequest, field, reason, message}
}

// Failed returns the problem that an answer could not be made.
func Failed(err error) *Problem {
	return &Problem{http.StatusInternalServerError, "request", Internal, err.Error()}
}

// TooManyElements returns the problem of an array beyond the limit.
func TooManyElements(field string, limit int) *Problem {
	return Bad(field, TooMany, "more than "+strconv.Itoa(limit)+" elements, the limit of this server")
}

// NotMethod returns the problem that the route takes only the methods named, as in an
// Allow header.
func NotMethod(allow string) *Problem {
	return &Problem{http.StatusMethodNotAllowed, "method", Method, "use " + allow + " on this route"}
}

// Error returns the problem in one line.
func (p *Problem) Error() string { return p.Field + ": " + p.Reason + ": " + p.Message }

// JSON returns the problem as an object that names the field.
func (p *Problem) JSON() []byte { return JSON(map[string]any{"error": p}) }

// Text returns the problem as a text, the form of the APIs that some routes are from.
func (p *Problem) Text() []byte { return JSON(map[string]string{"error": p.Field + ": " + p.Message}) }

// JSON returns the value's form and a line's end. A value that has none is a bug of
// ours; the client is told that much.
func JSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil {
		return []byte(`{"error":"internal"}` + "\n")
	}
	return b.Bytes()
}
