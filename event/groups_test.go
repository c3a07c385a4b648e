package event

import (
	"slices"
	"testing"
)

// What is said of a group twice completes itself, or is known no more, whoever says more.
func TestMergeCacheGroups(t *testing.T) {
	with := func(kind string, block uint32) []CacheGroup {
		return []CacheGroup{{Number: 2, Kind: kind, BlockSize: block}}
	}
	of := func(span uint32) []CacheGroup { return []CacheGroup{{Number: 2, Kind: "sliding_window", Span: span}} }
	for name, c := range map[string]struct {
		lists [][]CacheGroup
		kind  string
		span  uint32
	}{
		"one says more": {[][]CacheGroup{of(0), of(8)}, "sliding_window", 8},
		"two windows":   {[][]CacheGroup{of(8), of(9), of(8)}, Untold, 8},
		"two kinds":     {[][]CacheGroup{of(8), with("mamba", 0)}, Untold, 8},
		"two sizes":     {[][]CacheGroup{with("mamba", 16), with("mamba", 0), with("mamba", 32)}, Untold, 0},
		"names of one":  {[][]CacheGroup{with("full_attention", 0), with("mla_attention", 0), with("sink_full_attention", 0)}, "full_attention", 0},
		"names of two":  {[][]CacheGroup{of(8), with("sliding_window_mla", 0)}, "sliding_window", 8},
		"untold":        {[][]CacheGroup{of(8), {{Number: 2, Kind: Untold}}, of(8)}, Untold, 8},
	} {
		var all []CacheGroup
		for _, list := range c.lists {
			all = MergeCacheGroups(all, list)
		}
		if want := []CacheGroup{{Number: 2, Kind: c.kind, Span: c.span, BlockSize: all[0].BlockSize}}; !slices.Equal(all, want) {
			t.Errorf("%s: %+v, want %+v", name, all, want)
		}
	}
}
