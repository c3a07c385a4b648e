package proxy

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/route/account"
)

// The families of what was to be found cached, chosen and found.
const (
	familyPrompt   = "kvatlas_router_prompt_tokens"
	familyShort    = "kvatlas_router_not_selected"
	familyMiss     = "kvatlas_router_not_found"
	familySampled  = "kvatlas_router_decisions_sampled_total"
	familyKept     = "kvatlas_router_decisions_kept"
	familyKeptSize = "kvatlas_router_decisions_bytes"
)

// helpAccounts says what the families are.
func helpAccounts(m *obs.Metrics, log *account.Log) {
	shortfalls, misses := reasons[account.Shortfall](account.NumShortfalls), reasons[account.Miss](account.NumMisses)
	m.Help(familyPrompt, "Tokens of prompts that were looked up, as a histogram, by what they are (of: prompt; reachable, the most that a worker had cached; "+
		"selected, what the chosen one should find; actual, what its engine found) and by whether the engine said what it found (reported).")
	m.Help(familyShort+"_tokens_total", "Tokens between reachable and selected, by reason: "+shortfalls+".")
	m.Help(familyShort+"_requests_total", "Requests whose worker had less cached than another, by reason: "+shortfalls+".")
	m.Help(familyMiss+"_tokens_total", "Tokens between selected and actual, by found (less or more than expected) and reason: "+misses+".")
	m.Help(familyMiss+"_requests_total", "Requests whose engine found other than was expected by more than a block, by found (less or more) and reason: "+misses+".")
	m.Gauge(familySampled, "Decisions whose tables of candidates were kept.", func() float64 { return float64(log.Stats().Sampled) })
	m.Gauge(familyKept, "Decisions that are kept.", func() float64 { return float64(log.Stats().Kept) })
	m.Gauge(familyKeptSize, "Bytes that they take.", func() float64 { return float64(log.Stats().Bytes) })
}

// reasons lists the names of those behind the first, which is none.
func reasons[R interface {
	~uint8
	fmt.Stringer
}](n R) string {
	names := make([]string, 0, n)
	for why := R(1); why < n; why++ {
		names = append(names, why.String())
	}
	return strings.Join(names, ", ")
}

// writeAccounts writes what was reachable, selected and found of each model, family by family.
func writeAccounts(w io.Writer, p *Proxy) {
	type row struct {
		labels []string
		account.Totals
	}
	var rows []*row
	for _, m := range p.fleet.Models() {
		rows = append(rows, &row{labelsOf(m), m.Router.Totals()})
	}
	metrics.WriteMetadataIfNeeded(w, familyPrompt, "histogram")
	for _, r := range rows {
		for _, k := range [...]struct {
			reported string
			*account.Kept
		}{{"yes", &r.Reported}, {"no", &r.Silent}} {
			for _, h := range [...]struct {
				of string
				*account.Histogram
			}{{"prompt", &k.Prompt}, {"reachable", &k.Reachable}, {"selected", &k.Selected}, {"actual", &k.Actual}} {
				if h.Histogram != &r.Silent.Actual { // which nobody knows
					writeHistogram(w, familyPrompt, slices.Concat(r.labels, []string{"of", h.of, "reported", k.reported}), h.Histogram)
				}
			}
		}
	}
	counters := func(family string, of func(s account.Sum) uint64) {
		short, miss := familyShort+family, familyMiss+family
		metrics.WriteMetadataIfNeeded(w, short, "counter")
		for _, r := range rows {
			for why := account.Load; why < account.NumShortfalls; why++ {
				fmt.Fprintf(w, "%s %d\n", obs.Name(short, slices.Concat(r.labels, []string{"reason", why.String()})...), of(r.Short[why]))
			}
		}
		metrics.WriteMetadataIfNeeded(w, miss, "counter")
		for _, r := range rows {
			for why := account.Evicted; why < account.NumMisses; why++ {
				fmt.Fprintf(w, "%s %d\n", obs.Name(miss, slices.Concat(r.labels, []string{"found", "less", "reason", why.String()})...), of(r.Fewer[why]))
				fmt.Fprintf(w, "%s %d\n", obs.Name(miss, slices.Concat(r.labels, []string{"found", "more", "reason", why.String()})...), of(r.More[why]))
			}
		}
	}
	counters("_tokens_total", func(s account.Sum) uint64 { return s.Tokens })
	counters("_requests_total", func(s account.Sum) uint64 { return s.Requests })
}

// writeHistogram writes one as Prometheus has them.
func writeHistogram(w io.Writer, family string, labels []string, h *account.Histogram) {
	n := uint64(0)
	for i, bound := range account.Bounds() {
		n += h.Buckets[i]
		fmt.Fprintf(w, "%s %d\n", obs.Name(family+"_bucket", slices.Concat(labels, []string{"le", strconv.Itoa(bound)})...), n)
	}
	fmt.Fprintf(w, "%s %d\n", obs.Name(family+"_bucket", slices.Concat(labels, []string{"le", "+Inf"})...), h.Count())
	fmt.Fprintf(w, "%s %d\n", obs.Name(family+"_sum", labels...), h.Sum)
	fmt.Fprintf(w, "%s %d\n", obs.Name(family+"_count", labels...), h.Count())
}
