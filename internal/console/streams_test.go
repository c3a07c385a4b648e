package console

import (
	"testing"

	"github.com/kvatlas/kvatlas/ingest"
)

// A stream that was caught up with is not shown as that while NATS is gone.
func TestDisconnected(t *testing.T) {
	s := &ingest.StreamStatus{Stream: "s", Position: 7, Last: 7, CaughtUp: true}
	if one := streamShown(s, true); !one.CaughtUp || one.Error != nil {
		t.Errorf("connected: %+v", one)
	}
	if one := streamShown(s, false); one.CaughtUp || one.Error == nil {
		t.Errorf("not connected: %+v", one)
	}
}
