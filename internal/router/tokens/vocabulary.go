package tokens

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/internal/pace"
)

// HarmonyText is what each prompt of gpt-oss begins with. In its vocabulary (o200k_harmony), which no other
// model is known to have, and only there, the text has these three tokens.
const HarmonyText = "<|start|>system<|message|>"

var harmonyIDs = []uint32{200006, 17360, 200008}

// Harmony reports whether the model is one whose prompts are harmony's, gpt-oss, and whether that is known: by
// its files, or as Vocabulary has seen within a minute.
func (s *Subject) Harmony() (is, known bool) {
	if u := s.use.Load(); u != nil && u.model != nil {
		if u.model.harmony {
			return true, true
		}
		if u.state[Completion.Kind()] == Trusted {
			return false, true
		}
	}
	return s.vocabulary.look(s.source.now())
}

// Vocabulary is Harmony that has an engine asked, by ask for the ids of HarmonyText, where nobody knows: what a model
// is served as says nothing of what it is, nor does how its chats begin, which --chat-template may change. Of all who
// want to know one asks and the others wait; that no engine says it is remembered for a while, which gets longer.
// The error is ask's or ctx's; an AskerError of ask is for its caller alone.
func (s *Subject) Vocabulary(ctx context.Context, ask func(context.Context) ([]uint32, error)) (bool, error) {
	if is, known := s.Harmony(); known {
		return is, nil
	}
	return s.vocabulary.ask(ctx, s.source.now, ask)
}

// AskerError is why who asked has no answer, which says nothing of what others would have: its key, for one.
type AskerError struct{ Err error }

func (e *AskerError) Error() string { return e.Err.Error() }

func (e *AskerError) Unwrap() error { return e.Err }

const (
	vocabularyHolds = time.Minute // as another model may have the name by then
	vocabularyLeast = time.Second
	vocabularyMost  = 30 * time.Second
)

// vocabulary is what an engine said of HarmonyText. Whoever made asking owns the question until it is closed.
type vocabulary struct {
	mu     sync.Mutex
	is     bool
	until  time.Time
	asking chan struct{} // nil: nobody asks
	err    error         // of the last who asked in vain
	again  pace.Pace
}

func (v *vocabulary) look(now time.Time) (is, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.is, now.Before(v.until)
}

func (v *vocabulary) ask(ctx context.Context, now func() time.Time, ask func(context.Context) ([]uint32, error)) (bool, error) {
	for {
		begun := now()
		is, asking, known, err := v.join(begun)
		switch {
		case known:
			return is, err
		case asking == nil:
			return v.answered(ctx, now, begun, ask)
		}
		select {
		case <-asking: // who asked may have no answer for the others: then one of us asks
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// join returns what is known, be it that nobody says it, or else until when somebody asks: nil if that is for the caller to do.
func (v *vocabulary) join(begun time.Time) (is bool, asking <-chan struct{}, known bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case begun.Before(v.until):
		return v.is, nil, true, nil
	case v.asking != nil:
		return false, v.asking, false, nil
	case !v.again.Ready(begun):
		return false, nil, true, v.err
	}
	v.asking = make(chan struct{})
	return false, nil, false, nil
}

// answered asks, and tells who waits.
func (v *vocabulary) answered(ctx context.Context, now func() time.Time, begun time.Time, ask func(context.Context) ([]uint32, error)) (bool, error) {
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		close(v.asking)
		v.asking = nil
	}()
	ids, err := ask(ctx)
	var asker *AskerError
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case err == nil:
		v.is, v.until = slices.Equal(ids, harmonyIDs), now().Add(vocabularyHolds)
		v.again.Progress()
	case ctx.Err() == nil && !errors.As(err, &asker): // else it says nothing of the engines
		v.err = err
		v.again.Later(begun, now(), vocabularyLeast, vocabularyMost, 0)
	}
	return err == nil && v.is, err
}
