// Package otlptest is a collector of OpenTelemetry's spans for tests: it takes what comes
// by OTLP over HTTP, and decodes it with the protocol's own messages.
package otlptest
