package sidecar

import (
	"context"
	"errors"
	"time"
)

// snapshot returns the encoded state as of the last batch.
func (s *stream) snapshot() []byte {
	return appendState(nil, &state{
		identity: s.cfg.identity, incarnation: s.incarnation, last: s.sink.last(),
		incomplete: s.incomplete, eagle: s.eagle.Load(), hybrid: s.hybrid.Load(), position: s.cfg.position(), set: s.set,
	})
}

// saveBeside saves the present state once what it covers is acknowledged, while
// the stream goes on. If the last one is still being saved it does nothing.
func (s *stream) saveBeside() {
	if s.saving.busy.Load() {
		return
	}
	s.stopSaving() // it has ended: this frees its context
	ctx, cancel := context.WithCancel(s.ctx)
	s.saving.cancel = cancel
	s.saving.busy.Store(true)
	s.keep, s.saveAt = false, time.Now().Add(s.cfg.every)
	b, out, position := s.snapshot(), s.sink, s.cfg.position()
	s.saving.Go(func() {
		defer s.saving.busy.Store(false)
		if out.Flush(ctx) != nil {
			return // NATS is away, or the stream began anew: the state before stays
		}
		if err := s.save(b); err != nil {
			s.cfg.log.Warn("the state is not kept, the one before stays", "error", err)
		} else if s.cfg.kept != nil {
			s.cfg.kept(position)
		}
	})
}

// stopSaving ends what saveBeside began.
func (s *stream) stopSaving() {
	if s.saving.cancel != nil {
		s.saving.cancel()
		s.saving.Wait()
		s.saving.cancel = nil
	}
}

func (s *stream) save(b []byte) error {
	err := s.cfg.store.save(b)
	if err != nil {
		s.cfg.m.saveErrors.Inc()
		return err
	}
	s.cfg.m.saves.Inc()
	s.cfg.m.stateBytes.Set(float64(len(b)))
	return nil
}

// stop saves what is published and closes the sink, until ctx ends. Nothing
// tells the stream anything any more.
func (s *stream) stop(ctx context.Context) error {
	s.stopSaving()
	torn := s.torn
	if errors.Is(torn, context.Canceled) {
		torn = nil // told to stop while NATS took nothing: what came last comes again
	}
	if s.sink == nil {
		return torn
	}
	s.opened.Store(false)
	var b []byte
	if s.torn == nil && s.keep {
		b = s.snapshot()
	}
	if err := s.sink.Close(ctx); err != nil {
		return err // the state before covers less, and nothing that is lost
	}
	if b == nil {
		return torn
	}
	return s.save(b)
}
