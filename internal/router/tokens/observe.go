package tokens

import (
	"fmt"
	"io"
	"strconv"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/internal/program/obs"
)

const (
	familyState  = "kvatlas_router_tokenizer_state"
	familyMemory = "kvatlas_router_tokenizer_bytes"
)

// observe makes the Source's metrics.
func (s *Source) observe(m *obs.Metrics) {
	if m == nil {
		m = obs.NewMetrics()
	}
	const compared, help = "kvatlas_router_tokenizer_compared_total", "Prompts whose tokens were compared with an engine's, by result: agrees, differs, or unknown if it did not say."
	s.agreed = m.Counter(compared, help, "result", "agrees")
	s.differed = m.Counter(compared, help, "result", "differs")
	s.unknown = m.Counter(compared, help, "result", "unknown")
	s.made = m.Counter("kvatlas_router_tokenize_total", "Texts whose tokens were needed, by where they came from.", "from", "process")
	s.asked = map[Reason]*metrics.Counter{}
	for _, r := range Reasons() {
		s.asked[r] = m.Counter("kvatlas_router_tokenizer_asked_total", "Prompts whose tokens were not made in the process, by reason: an engine is asked.", "reason", string(r))
	}
	m.Help(familyState, "1 for the state of what is known of a model's files, of prompts that are texts and chats, of conversations of /v1/messages and /v1/responses, and of ids that become text (detokenized): unproven, trusted, or disagrees with what engines make.")
	m.Help(familyMemory, "Memory of a model's tokenizer, its caches when full included. Models with the same files share it.")
	m.RegisterMetricsWriter(func(w io.Writer) {
		list := s.Status()
		labels := func(x *Status, more ...string) []string {
			return append([]string{"model", x.Model, "block_size", strconv.FormatUint(uint64(x.BlockSize), 10), "group", x.Group}, more...)
		}
		metrics.WriteMetadataIfNeeded(w, familyState, "gauge")
		for i := range list {
			for k := range kinds {
				fmt.Fprintf(w, "%s 1\n", obs.Name(familyState, labels(&list[i], "prompts", k.String(), "state", list[i].States[k.String()])...))
			}
		}
		metrics.WriteMetadataIfNeeded(w, familyMemory, "gauge")
		for i := range list {
			fmt.Fprintf(w, "%s %d\n", obs.Name(familyMemory, labels(&list[i])...), list[i].Memory)
		}
	})
}
