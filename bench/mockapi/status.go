package mockapi

import (
	"fmt"
	"net/http"
	"slices"
)

// serves reports whether the model of a request is the engine's, or one of its
// adapters. Like SGLang, the engine takes a request that names none.
func (s *Server) serves(model string) bool {
	return model == "" || model == s.cfg.Model || slices.Contains(s.cfg.Loras, model)
}

// models lists the model and its adapters as vLLM does: those name their parent.
func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	list := []any{map[string]any{"id": s.cfg.Model, "object": "model", "parent": nil, "owned_by": s.cfg.Kind, "max_model_len": maxLength}}
	for _, l := range s.cfg.Loras {
		list = append(list, map[string]any{"id": l, "object": "model", "owned_by": s.cfg.Kind, "parent": s.cfg.Model})
	}
	answer(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

// metrics tells each rank's load in the names of vLLM's metrics, and what became
// of prompts from other engines in the mock's own.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	for i, k := range s.ranks {
		l := k.load()
		labels := fmt.Sprintf(`{model_name=%q,engine="%d"}`, s.cfg.Model, i)
		_, _ = fmt.Fprintf(w, "vllm:num_requests_running%s %d\nvllm:num_requests_waiting%s %d\nvllm:kv_cache_usage_perc%s %g\n",
			labels, l.Running, labels, l.Waiting, labels, float64(l.Blocks)/float64(s.cfg.Engine.Blocks)) // the client may be gone
		_, _ = fmt.Fprintf(w, "kvatlas_engine_prefill_tokens%s %d\n", labels, l.PrefillTokens)
	}
	_, _ = fmt.Fprintf(w, "vllm:cache_config_info{block_size=\"%d\",num_gpu_blocks=\"%d\"} 1\n", s.cfg.Engine.BlockSize, s.cfg.Engine.Blocks)
	_, _ = fmt.Fprintf(w, "mock_requests_total %d\nmock_aborted_total %d\nmock_received_prompts_total %d\nmock_lost_prompts_total %d\n",
		s.Requests.Load(), s.Aborted.Load(), s.Received.Load(), s.Lost.Load())
}
