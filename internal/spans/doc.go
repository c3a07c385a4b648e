// Package spans tells parts of a request's trace, of OpenTelemetry.
//
// Whether there is a trace is for the context to say: within a span that is recorded there
// are parts, else there is nothing, at the price of looking for it. Nothing here is global,
// so that in the library the parts belong to the trace of whoever calls.
//
// Attributes are figures, names of workers and reasons, never what a prompt says, its
// tokens, or their hashes.
package spans
