package keeper

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A store without a leader is asked again, for a while: what it is to give saves asking every publisher.
func TestAStoreThatDoesNotAnswerIsAskedAgain(t *testing.T) {
	for _, c := range []struct {
		until time.Duration // it answers
		then  error
		asked time.Duration
	}{{0, nil, 0}, {0, io.EOF, 0}, {5 * time.Second, nil, 5 * time.Second}, {5 * time.Second, io.EOF, 5 * time.Second}, {time.Hour, nil, askWait + askPause}} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			err := askAgain(t.Context(), func() error {
				if time.Since(began) < c.until {
					return &jetstream.APIError{Code: 503}
				}
				return c.then
			})
			if took := time.Since(began); took != c.asked || c.until < time.Hour && !errors.Is(err, c.then) || c.until == time.Hour && err == nil {
				t.Errorf("%+v: %v after %v", c, err, took)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := askAgain(ctx, func() error { return context.DeadlineExceeded }); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
