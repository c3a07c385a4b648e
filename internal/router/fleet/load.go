package fleet

import (
	"bytes"
	"context"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

// maxMetrics bounds what of an engine's metrics is read, in bytes.
const maxMetrics = 4 << 20

// The metrics that tell a rank's load. An engine of one's own may export the last
// two.
var (
	usageMetrics = []string{
		"vllm:kv_cache_usage_perc",
		"vllm:gpu_cache_usage_perc", // the same, until vLLM 0.10
		"sglang:token_usage",
	}
	blocksMetric  = "kvatlas_engine_active_blocks"
	prefillMetric = "kvatlas_engine_prefill_tokens"
	// The label that names the rank, of vLLM and of SGLang.
	rankLabels = []string{"engine", "dp_rank"}
)

// AskLoad asks every engine for its metrics, at the path, and tells its router
// the load that they report. Models without busy thresholds, which alone go by it,
// are left out. It returns how many ranks reported.
func (f *Fleet) AskLoad(ctx context.Context, client *http.Client, path string, timeout time.Duration) int {
	return f.each(func(m *Model) bool { return m.Router.Thresholds() != (route.Thresholds{}) }, func(e *Engine) (reported int) {
		data, ok := e.fetch(ctx, client, path, timeout, maxMetrics)
		if !ok {
			return 0
		}
		for rank, report := range parseLoad(data) {
			if rank == noRank {
				rank = e.first.Load()
			}
			// A rank that is not registered is nobody's.
			if e.model.Router.ReportLoad(shard.RankID{Worker: e.ID, DPRank: rank}, report) == nil {
				reported++
			}
		}
		return reported
	})
}

// noRank stands for the only rank of an engine that does not number it.
const noRank = math.MaxUint32

// parseLoad finds the loads of ranks among metrics in Prometheus's text format.
func parseLoad(data []byte) map[uint32]route.Report {
	loads := map[uint32]route.Report{}
	for line := range bytes.Lines(data) {
		name, rest := line, []byte(nil)
		if i := bytes.IndexAny(line, "{ "); i >= 0 {
			name, rest = line[:i], line[i:]
		}
		usage := slices.Contains(usageMetrics, string(name))
		if !usage && string(name) != blocksMetric && string(name) != prefillMetric {
			continue
		}
		rank, value, ok := parseSample(rest)
		if !ok || !(value >= 0 && value <= math.MaxInt32) {
			continue
		}
		l := loads[rank]
		switch {
		case usage:
			l.CacheUsage = max(l.CacheUsage, value)
		case string(name) == blocksMetric:
			l.ActiveBlocks = max(l.ActiveBlocks, int(value))
		default:
			l.PrefillTokens = max(l.PrefillTokens, int(value))
		}
		loads[rank] = l
	}
	return loads
}

// parseSample reads `{labels} value [time]` or ` value [time]`.
func parseSample(rest []byte) (rank uint32, value float64, ok bool) {
	rank = noRank
	if len(rest) > 0 && rest[0] == '{' {
		for rest = rest[1:]; ; {
			rest = bytes.TrimLeft(rest, ", ")
			if len(rest) > 0 && rest[0] == '}' {
				rest = rest[1:]
				break
			}
			eq := bytes.IndexByte(rest, '=')
			if eq < 0 {
				return 0, 0, false
			}
			quoted, err := strconv.QuotedPrefix(string(rest[eq+1:]))
			if err != nil {
				return 0, 0, false
			}
			if slices.Contains(rankLabels, string(rest[:eq])) {
				n, err := strconv.ParseUint(quoted[1:len(quoted)-1], 10, 32)
				if err != nil {
					return 0, 0, false
				}
				rank = uint32(n)
			}
			rest = rest[eq+1+len(quoted):]
		}
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 0, 0, false
	}
	value, err := strconv.ParseFloat(string(fields[0]), 64)
	return rank, value, err == nil
}
