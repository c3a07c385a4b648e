package natstest

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// CutTail takes bytes off the end of what the server of a data directory has
// stored of a stream, as a machine that loses power does with what was not
// synced. The server does not run. It returns how much it took.
func CutTail(t testing.TB, dataDir, stream string, bytes int64) (taken int64) {
	t.Helper()
	blocks, err := filepath.Glob(filepath.Join(dataDir, "jetstream", "*", "streams", stream, "msgs", "*.blk"))
	if err != nil || len(blocks) == 0 {
		t.Fatalf("no files of stream %s below %s: %v", stream, dataDir, err)
	}
	number := func(path string) int {
		n, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), ".blk"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	slices.SortFunc(blocks, func(a, b string) int { return number(b) - number(a) })
	for _, path := range blocks {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		n := min(bytes-taken, info.Size())
		if err := os.Truncate(path, info.Size()-n); err != nil {
			t.Fatal(err)
		}
		if taken += n; taken == bytes {
			break
		}
	}
	return taken
}
