package zmqfeed

import (
	"math"
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

// TestAnyQueue: Run makes room for all messages that may wait, which is not to end the process.
func TestAnyQueue(t *testing.T) {
	for _, n := range []int{math.MinInt, 0, math.MaxInt} {
		c := Config{Endpoint: "tcp://a:1", QueueMessages: n}
		if err := c.setDefaults(); err != nil || c.QueueMessages < 1 || c.QueueMessages > 1<<20 {
			t.Errorf("%d of %d messages wait: %v", c.QueueMessages, n, err)
		}
	}
}
