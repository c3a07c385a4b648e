package fleet

import "testing"

// Whatever an engine calls its metrics and models, loads are numbers that a load
// can be, and names are names.
func FuzzAsked(f *testing.F) {
	f.Add([]byte("vllm:kv_cache_usage_perc{engine=\"0\",m=\"a\\\"}\"} 0.5 1\nkvatlas_engine_active_blocks 7\n"))
	f.Add([]byte("sglang:token_usage{dp_rank=\"1\"} NaN\nsglang:token_usage{dp_rank=1} 1\nsglang:token_usage{"))
	f.Add([]byte(`{"data":[{"id":"l","parent":"m"},{"id":"m","parent":null}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for rank, l := range parseLoad(data) {
			if !(l.CacheUsage >= 0 && l.CacheUsage < 1<<40) || l.ActiveBlocks < 0 || l.PrefillTokens < 0 {
				t.Fatalf("rank %d: %+v", rank, l)
			}
		}
		names, _ := parseModels(data)
		for _, list := range [][]string{names.adapters, names.served} {
			for i, name := range list {
				if name == "" || i > 0 && name <= list[i-1] {
					t.Fatalf("%q", list)
				}
			}
		}
	})
}
