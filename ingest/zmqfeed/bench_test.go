package zmqfeed

import (
	"context"
	"iter"
	"testing"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
)

// counter is a Handler that waits for a number.
type counter struct {
	last uint64
	done chan struct{}
}

func (c *counter) Batch(seq uint64, _ *event.Batch) (unknownParent, refused bool) {
	if seq == c.last {
		close(c.done)
	}
	return false, false
}
func (*counter) Gap(Gap) {}
func (*counter) Snapshot(uint64, iter.Seq[*event.Batch]) (unplaced, refused bool) {
	return false, false
}
func (*counter) Restart(follow.Sign) {}
func (*counter) State(State)         {}

// BenchmarkReplay is one batch of 64 blocks of 16 tokens through publisher,
// loopback, feed and decoder.
func BenchmarkReplay(b *testing.B) {
	hashes, tokens := make([]uint64, 64), make([]uint32, 1024)
	for i := range hashes {
		hashes[i] = uint64(i) << 32
	}
	payload := mptest.Encode([]any{1.5, []any{[]any{"BlockStored", hashes, nil, tokens, 16, nil}}, 0})
	p, err := enginepub.New(enginepub.Config{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Buffer: 1 << 24})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	for range b.N {
		p.Publish(payload)
	}
	c := &counter{last: uint64(b.N - 1), done: make(chan struct{})}
	f, err := New(Config{Endpoint: p.Endpoint(), Replay: p.ReplayEndpoint(), Decoder: engine.Config{BlockSize: 16}}, c)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	b.ResetTimer()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() { defer close(ended); f.Run(ctx) }()
	<-c.done
	b.StopTimer()
	cancel()
	<-ended
}
