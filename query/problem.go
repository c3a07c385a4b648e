package query

import "github.com/valyala/fasthttp"

// The reasons for which a request is refused; labels of
// kvatlas_http_refused_total and values of "reason" in error answers.
const (
	reasonMalformedJSON     = "malformed_json"
	reasonUnknownField      = "unknown_field"
	reasonDuplicateField    = "duplicate_field"
	reasonWrongType         = "wrong_type"
	reasonNegative          = "negative"
	reasonNotInteger        = "not_integer"
	reasonOutOfRange        = "out_of_range"
	reasonTooMany           = "too_many"
	reasonMissing           = "missing"
	reasonConflict          = "conflict"
	reasonUnknownModel      = "unknown_model"
	reasonUnknownGroup      = "unknown_group"
	reasonBlockSize         = "block_size_mismatch"
	reasonUnknownArgument   = "unknown_argument"
	reasonUnknownRoute      = "unknown_route"
	reasonMethod            = "method_not_allowed"
	reasonMediaType         = "unsupported_media_type"
	reasonEncoding          = "unsupported_encoding"
	reasonBodyTooLarge      = "body_too_large"
	reasonHeaderTooLarge    = "header_too_large"
	reasonTimeout           = "timeout"
	reasonMalformedRequest  = "malformed_request"
	reasonMalformedEncoding = "malformed_encoding"
	reasonUnauthenticated   = "unauthenticated"
	reasonForbidden         = "forbidden"
	reasonBusy              = "too_many_requests"
	reasonNotReady          = "not_ready"
	reasonInternal          = "internal"
	reasonRegistration      = "registration"
	reasonConnections       = "too_many_connections"
	reasonAddress           = "too_many_connections_of_address"
)

// Problem is why a request is refused.
type Problem struct {
	Status  int
	Field   string // the field at fault, as in "hashes[3]"; or a part of the request: body, path, …
	Reason  string // one word of a fixed list
	Message string // for people: what is wrong and what to send instead
}

// Error returns the problem in one line.
func (p *Problem) Error() string { return p.Field + ": " + p.Reason + ": " + p.Message }

// bad returns a problem with status 400.
func bad(field, reason, message string) *Problem {
	return &Problem{fasthttp.StatusBadRequest, field, reason, message}
}

// appendProblem appends the problem's JSON form.
func appendProblem(dst []byte, p *Problem) []byte {
	dst = append(dst, `{"error":{"field":`...)
	dst = appendString(dst, p.Field)
	dst = append(dst, `,"reason":`...)
	dst = appendString(dst, p.Reason)
	dst = append(dst, `,"message":`...)
	dst = appendString(dst, p.Message)
	return append(dst, "}}\n"...)
}

// appendPlainProblem appends the problem as a text, the form of the APIs that
// the indexer's routes are from.
func appendPlainProblem(dst []byte, p *Problem) []byte {
	dst = append(dst, `{"error":`...)
	dst = appendString(dst, p.Field+": "+p.Message)
	return append(dst, "}\n"...)
}
