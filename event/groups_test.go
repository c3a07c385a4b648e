package event

import (
	"slices"
	"testing"
)

// What is said of a group twice completes itself, or is known no more, whoever says more.
func TestMergeCacheGroups(t *testing.T) {
	of := func(span uint32) []CacheGroup { return []CacheGroup{{Number: 2, Kind: "sliding_window", Span: span}} }
	for name, c := range map[string]struct {
		lists [][]CacheGroup
		kind  string
		span  uint32
	}{
		"one says more": {[][]CacheGroup{of(0), of(8)}, "sliding_window", 8},
		"two windows":   {[][]CacheGroup{of(8), of(9), of(8)}, Untold, 8},
		"untold":        {[][]CacheGroup{of(8), {{Number: 2, Kind: Untold}}, of(8)}, Untold, 8},
	} {
		var all []CacheGroup
		for _, list := range c.lists {
			all = MergeCacheGroups(all, list)
		}
		if want := []CacheGroup{{Number: 2, Kind: c.kind, Span: c.span}}; !slices.Equal(all, want) {
			t.Errorf("%s: %+v, want %+v", name, all, want)
		}
	}
}
