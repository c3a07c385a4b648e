// Package obs is what every program of kvatlas uses to be observed: structured
// logs, a logger that cannot flood, metrics with help texts, and the version.
//
// Invariants:
//   - A [Limited] logger writes at most one line per key and interval and says
//     how many it left out; its memory is bounded.
//   - Every metric that is registered through [Metrics] has HELP and TYPE.
//   - What a library prints by itself is a line of the log, without what it quotes.
//
// Ownership: nothing here is global but what the metrics library keeps itself, and
// package log's output, which a program sets once; it makes one logger and one Metrics
// and passes them on.
package obs
