package shard

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// TestAStuckOwnerIsNotAlive holds up one of several owners, first with room in
// its queue, then without.
func TestAStuckOwnerIsNotAlive(t *testing.T) {
	set := New(Config{Shards: 3, Queue: 2})
	defer set.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := set.Alive(ctx); err != nil {
		t.Errorf("without spaces: %v", err)
	}
	for _, model := range []string{"a", "b"} {
		if _, err := set.Open(event.Space{Model: model, BlockSize: 16}); err != nil {
			t.Fatal(err)
		}
	}
	if err := set.Alive(ctx); err != nil {
		t.Error(err)
	}
	stuck, release, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	if err := set.Lookup(event.Space{Model: "b", BlockSize: 16}).submit(ctx, func(task *task) {
		task.inspect = func(o *owner) {
			if o.number == 1 {
				close(stuck)
				<-release
			}
		}
		task.done = func(core.Outcome) { close(done) }
	}); err != nil {
		t.Fatal(err)
	}
	<-stuck
	for range 2 { // the first takes the last place in the queue
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		if err := set.Alive(short); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `model "b"`) {
			t.Errorf("an owner is stuck: %v", err)
		}
		cancel()
	}
	close(release)
	<-done
	if err := set.Alive(ctx); err != nil {
		t.Error(err)
	}
	set.Close()
	if err := set.Alive(ctx); err != nil {
		t.Errorf("a closed set has nobody who could be stuck: %v", err)
	}
}
