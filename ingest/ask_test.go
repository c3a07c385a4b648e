package ingest

import (
	"testing"
	"time"
)

// What is kept of publishers that are asked no more does not add up.
func TestQuotasAreForgotten(t *testing.T) {
	var q quotas
	now := time.Unix(1e9, 0)
	for i := range 100_000 {
		q.take(string(binaryName(i)), now, 100, time.Second)
		now = now.Add(time.Millisecond)
	}
	if n := len(q.by); n > 300 {
		t.Errorf("%d quotas are kept", n)
	}
}

func binaryName(i int) []byte { return []byte{byte(i), byte(i >> 8), byte(i >> 16)} }
