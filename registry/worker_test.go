package registry

import (
	"strings"
	"testing"
)

// A socket publishes as one rank, and is for one purpose.
func TestNoSocketIsGivenForTwo(t *testing.T) {
	for name, e := range map[string]Endpoints{
		"events and replay":       {Events: map[uint32]string{0: "tcp://a:5557"}, Replay: map[uint32]string{0: "tcp://a:5557"}},
		"events of two ranks":     {Events: map[uint32]string{0: "tcp://a:5557", 1: "tcp://a:5557"}},
		"one's events, a replay":  {Events: map[uint32]string{0: "tcp://a:5557", 1: "tcp://a:5558"}, Replay: map[uint32]string{0: "tcp://a:5558", 1: "tcp://a:5559"}},
		"replay and its snapshot": {Events: map[uint32]string{0: "tcp://a:5557"}, Replay: map[uint32]string{0: "tcp://a:5558"}, Snapshot: map[uint32]string{0: "tcp://a:5558"}},
	} {
		w := Worker{Model: "m", BlockSize: 16, Transport: ZMQ, Ranks: []uint32{0, 1}, Endpoints: e}
		if err := w.Check(); err == nil || !strings.Contains(err.Error(), "given for two sockets") {
			t.Errorf("%s: %v", name, err)
		}
	}
	w := Worker{Model: "m", BlockSize: 16, Transport: ZMQ, Ranks: []uint32{0, 1}, Endpoints: Endpoints{
		Events: map[uint32]string{0: "tcp://a:5557", 1: "tcp://a:5558"}, Replay: map[uint32]string{0: "tcp://a:6557", 1: ""}, Snapshot: map[uint32]string{1: ""}}}
	if err := w.Check(); err != nil {
		t.Error(err)
	}
}
