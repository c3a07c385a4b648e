// Package traces sends a program's spans to an OpenTelemetry collector, by OTLP.
//
// It is set by the variables that OpenTelemetry's specification names, and by no others:
// unless they name an endpoint nothing is recorded, and no goroutine runs. What cannot be
// sent is dropped and counted; no request waits for it.
//
// Ownership: whoever opened a Sender closes it, after the last span.
package traces
