package sidecar

import (
	"fmt"
	"strconv"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// streamMeters are the counters of one stream.
type streamMeters struct {
	events, blocks                     [event.Cleared + 1]*metrics.Counter
	results                            [core.NumResults]*metrics.Counter
	restarts, gaps, otherRank, invalid *metrics.Counter
	saves, saveErrors, refused         *metrics.Counter
	stateBytes, incomplete             *metrics.Gauge
	held                               [event.NumTiers]*metrics.Gauge
}

func newStreamMeters(set *metrics.Set, dpRank uint32) *streamMeters {
	rank := strconv.FormatUint(uint64(dpRank), 10)
	counter := func(name string, pairs ...string) *metrics.Counter {
		return set.GetOrCreateCounter(obs.Name("kvatlas_publisher_"+name, append(pairs, "dp_rank", rank)...))
	}
	gauge := func(name string, pairs ...string) *metrics.Gauge {
		return set.GetOrCreateGauge(obs.Name("kvatlas_publisher_"+name, append(pairs, "dp_rank", rank)...), nil)
	}
	m := &streamMeters{
		restarts: counter("engine_restarts_total"), gaps: counter("engine_gaps_total"),
		otherRank: counter("other_rank_events_total"), invalid: counter("invalid_events_total"),
		saves: counter("state_saves_total"), saveErrors: counter("state_save_errors_total"),
		refused: counter("state_refused_total"), stateBytes: gauge("state_bytes"), incomplete: gauge("incomplete"),
	}
	for i, c := range new(core.Outcome).Counts() {
		m.results[i] = counter("engine_results_total", "result", c.Result)
	}
	for k := event.Stored; k <= event.Cleared; k++ {
		m.events[k] = counter("engine_events_total", "kind", k.String())
		m.blocks[k] = counter("engine_blocks_total", "kind", k.String())
	}
	for t := range m.held {
		m.held[t] = gauge("held_blocks", "tier", event.Tier(t).String())
	}
	return m
}

func (m *streamMeters) event(k event.Kind, blocks int) {
	if k < event.Stored || k > event.Cleared {
		return
	}
	m.events[k].Inc()
	m.blocks[k].Add(blocks)
}

func (m *streamMeters) outcome(o core.Outcome) {
	for i, c := range o.Counts() {
		m.results[i].Add(c.N)
	}
}

func (m *streamMeters) hold(s *set) {
	for t, n := range s.held() {
		m.held[t].Set(float64(n))
	}
}

// help returns the help text of every family.
func help() map[string]string {
	text := map[string]string{
		"engine_events_total":     "Events of the engine, by kind.",
		"engine_blocks_total":     "Blocks of the engine's events, by kind.",
		"engine_results_total":    "Blocks of the engine's events, by result: what they changed; only stored and removed ones are published.",
		"engine_restarts_total":   "Engine restarts; each begins the stream anew.",
		"engine_gaps_total":       "Runs of batches that are lost for good.",
		"other_rank_events_total": "Events that name another rank than that of their socket, which holds.",
		"invalid_events_total":    "Events that have no encoding and are not published.",
		"state_saves_total":       "Times that the state was kept.",
		"state_save_errors_total": "Times that the state could not be kept.",
		"state_refused_total":     "Kept states that were damaged or of other settings.",
		"state_bytes":             "Size of the kept state.",
		"incomplete":              "1 if something is missing of what the rank holds.",
		"held_blocks":             "Blocks that the rank holds, by tier.",
		"feed_queued_messages":    "Messages of the engine that wait.",
		"registered":              "1 while the worker is announced.",
		"socket_connections":      "Engines connected to the Unix socket.",
		"socket_refused_total":    "Connections to the Unix socket that were closed, by reason.",
	}
	all := zmqfeed.SeriesHelp("kvatlas_publisher_feed_")
	for name, t := range text {
		all[fmt.Sprint("kvatlas_publisher_", name)] = t
	}
	return all
}
