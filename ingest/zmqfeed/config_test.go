package zmqfeed

import (
	"strings"
	"testing"
)

// TestEndpointsThatCannotBe: what nothing can ever be connected to is refused, not tried for ever.
func TestEndpointsThatCannotBe(t *testing.T) {
	for _, bad := range []string{"", "127.0.0.1:5557", "http://a:5557", "tcp://a", "tcp://*:5557", "tcp://:5557", "ipc://"} {
		if _, err := New(Config{Endpoint: bad}, newRecorder(t)); err == nil {
			t.Errorf("events of %q", bad)
		}
		if bad == "" {
			continue // there is none
		}
		if _, err := New(Config{Endpoint: "tcp://a:1", Replay: bad}, newRecorder(t)); err == nil || !strings.Contains(err.Error(), "replay") {
			t.Errorf("a replay of %q: %v", bad, err)
		}
		if _, err := New(Config{Endpoint: "tcp://a:1", Snapshot: bad}, newRecorder(t)); err == nil || !strings.Contains(err.Error(), "snapshot") {
			t.Errorf("a snapshot of %q: %v", bad, err)
		}
	}
}
