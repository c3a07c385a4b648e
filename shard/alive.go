package shard

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/core"
)

// Alive returns once the owners of every space have done what was handed to them
// before the call. An owner that is stuck keeps it from returning, until ctx
// ends; the error names its space.
func (s *Set) Alive(ctx context.Context) error {
	type asked struct {
		*Space
		done chan struct{}
	}
	var all []asked
	for _, key := range s.Spaces() {
		a := asked{s.Lookup(key), make(chan struct{})}
		err := a.submit(ctx, func(t *task) {
			t.inspect = func(*owner) {}
			t.done = func(core.Outcome) { close(a.done) }
		})
		switch {
		case errors.Is(err, ErrClosed): // its owners stop
			continue
		case err != nil:
			return fmt.Errorf("the index of model %q: %w", key.Model, err)
		}
		all = append(all, a)
	}
	for _, a := range all {
		select {
		case <-a.done:
		case <-ctx.Done():
			return fmt.Errorf("the index of model %q does not finish its batches: %w", a.key.Model, ctx.Err())
		}
	}
	return nil
}
