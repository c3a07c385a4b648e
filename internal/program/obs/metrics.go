package obs

import (
	"bytes"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/VictoriaMetrics/metrics"
)

// LatencyBuckets are the upper bounds, in seconds, of latency histograms: fine
// where an index answers from memory, coarse where a network waits.
func LatencyBuckets() []float64 {
	return []float64{
		25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3,
		1, 2.5, 5, 10,
	}
}

// Metrics is a set of metrics with help texts, which the library itself has no
// place for. It is safe for concurrent use.
type Metrics struct {
	*metrics.Set

	mu struct {
		sync.Mutex
		help map[string]string // by metric family
	}
}

// NewSet returns an empty set.
func NewSet() *Metrics {
	m := &Metrics{Set: metrics.NewSet()}
	m.mu.help = make(map[string]string)
	return m
}

// NewMetrics returns a set for a program: with the build information and the
// metrics of the process and of the Go runtime. It switches on the library's TYPE
// lines, for the whole process.
func NewMetrics() *Metrics {
	metrics.ExposeMetadata(true)
	m := NewSet()
	m.Help("kvatlas_build_info", "What was built, as labels; the value is 1.")
	m.NewGauge(ReadVersion().metric(), func() float64 { return 1 })
	m.RegisterMetricsWriter(metrics.WriteProcessMetrics)
	return m
}

// Help gives a metric family its help text: one sentence with the unit.
func (m *Metrics) Help(family, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.help[family] = text
}

// Counter registers a counter with its help text; pairs are label names and
// values.
func (m *Metrics) Counter(family, help string, pairs ...string) *metrics.Counter {
	m.Help(family, help)
	return m.GetOrCreateCounter(Name(family, pairs...))
}

// Gauge registers a gauge that f computes on each exposition.
func (m *Metrics) Gauge(family, help string, f func() float64, pairs ...string) {
	m.Help(family, help)
	m.GetOrCreateGauge(Name(family, pairs...), f)
}

// Histogram registers a histogram with standard le buckets.
func (m *Metrics) Histogram(family, help string, bounds []float64, pairs ...string) *metrics.PrometheusHistogram {
	m.Help(family, help)
	return m.GetOrCreatePrometheusHistogramExt(Name(family, pairs...), bounds)
}

// WritePrometheus writes all metrics in the Prometheus text format, with HELP
// and TYPE lines. What has a help text and no sample yet, because it counts what
// has not happened, has its HELP line all the same: so the exposition of a program
// names all that its release exposes, and docs/metrics.md is made from it.
func (m *Metrics) WritePrometheus(w io.Writer) {
	var b bytes.Buffer
	m.Set.WritePrometheus(&b)
	m.mu.Lock()
	defer m.mu.Unlock()
	without := maps.Clone(m.mu.help)
	for line := range bytes.Lines(b.Bytes()) {
		// The library writes "# HELP name" without a text.
		if family, ok := bytes.CutPrefix(line, []byte("# HELP ")); ok {
			family = bytes.TrimSpace(family)
			text := m.mu.help[string(family)]
			delete(without, string(family))
			switch {
			case text != "":
			case bytes.HasPrefix(family, []byte("go_")):
				text = "Of the Go runtime: see packages runtime and runtime/metrics."
			case bytes.HasPrefix(family, []byte("process_")):
				text = "Of the process, as the system accounts for it."
			}
			if text != "" {
				line = helpLine(string(family), text)
			}
		}
		// The library has no counters that a function computes: they are
		// registered as gauges, and known by their names.
		if family, ok := bytes.CutPrefix(line, []byte("# TYPE ")); ok {
			if family, ok = bytes.CutSuffix(bytes.TrimSpace(family), []byte("_total gauge")); ok {
				line = []byte("# TYPE " + string(family) + "_total counter\n")
			}
		}
		if _, err := w.Write(line); err != nil {
			return
		}
	}
	for _, family := range slices.Sorted(maps.Keys(without)) {
		if _, err := w.Write(helpLine(family, without[family])); err != nil {
			return
		}
	}
}

func helpLine(family, text string) []byte {
	return []byte("# HELP " + family + " " + helpEscape.Replace(text) + "\n")
}

// The escapes of the text format
// (https://prometheus.io/docs/instrumenting/exposition_formats/).
var (
	helpEscape  = strings.NewReplacer("\\", `\\`, "\n", `\n`)
	labelEscape = strings.NewReplacer("\\", `\\`, "\n", `\n`, `"`, `\"`)
)

// Name returns a metric's name with labels, given as name and value in turn.
// Values are escaped; they must come from a bounded set.
func Name(family string, pairs ...string) string {
	var b strings.Builder
	b.WriteString(family)
	for i := 0; i+1 < len(pairs); i += 2 {
		sep := ","
		if i == 0 {
			sep = "{"
		}
		b.WriteString(sep + pairs[i] + `="` + labelEscape.Replace(pairs[i+1]) + `"`)
	}
	if len(pairs) > 1 {
		b.WriteString("}")
	}
	return b.String()
}
