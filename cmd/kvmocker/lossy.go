package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/publish"
)

// lossy is a publisher that loses an event now and then. It is used by one goroutine, that
// of the engines.
type lossy struct {
	*publish.Publisher
	every time.Duration
	last  time.Time
}

// lossyRoom is enough for what an engine says in one step, mostly, so that events are lost
// when they are to be.
const lossyRoom = 256 << 10

func openLossy(ctx context.Context, cfg publish.Config, every time.Duration) (*lossy, error) {
	cfg.MaxPending, cfg.WhenFull = lossyRoom, publish.Drop
	p, err := publish.Open(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("publish with losses: %w", err)
	}
	return &lossy{p, every, time.Now()}, nil
}

// Publish says the event again when the time for a loss has come, until there is no room: a
// block that is stored twice is stored, so what is lost are words, and the worker's state is
// what it was.
func (l *lossy) Publish(ctx context.Context, ev event.Event) error {
	err := l.Publisher.Publish(ctx, ev)
	if ev.Kind == event.Stored && time.Since(l.last) >= l.every {
		l.last = time.Now()
		for range lossyRoom / event.MaxEventSize(&ev) * 2 {
			if err != nil {
				break
			}
			err = l.Publisher.Publish(ctx, ev)
		}
	}
	if errors.Is(err, publish.ErrDropped) { // as it should be: the publisher tells who asks
		return nil
	}
	return err
}
