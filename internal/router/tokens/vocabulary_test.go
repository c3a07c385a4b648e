package tokens

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// vocabularyLab asks a vocabulary, by the bubble's clock.
type vocabularyLab struct {
	vocabulary
	asked  int
	answer func(context.Context) ([]uint32, error)
}

func (l *vocabularyLab) want(ctx context.Context) (bool, error) {
	return l.ask(ctx, time.Now, func(ctx context.Context) ([]uint32, error) {
		l.asked++
		return l.answer(ctx)
	})
}

// TestVocabularyIsAskedByOne: of many at once one asks, and all have the answer; after its client has left another does.
func TestVocabularyIsAskedByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		l := &vocabularyLab{answer: func(ctx context.Context) ([]uint32, error) {
			select {
			case <-release:
				return harmonyIDs, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}}
		ctx, leave := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() {
			_, err := l.want(ctx)
			first <- err
		}()
		synctest.Wait()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if is, err := l.want(t.Context()); !is || err != nil {
					t.Errorf("%v, %v", is, err)
				}
			})
		}
		gone, left := context.WithCancel(t.Context())
		wg.Go(func() {
			if _, err := l.want(gone); !errors.Is(err, context.Canceled) {
				t.Errorf("who left while another asked has %v", err)
			}
		})
		synctest.Wait()
		if l.asked != 1 {
			t.Fatalf("asked %d times at once", l.asked)
		}
		left()
		leave()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("who left has %v", err)
		}
		synctest.Wait()
		if l.asked != 2 {
			t.Fatalf("asked %d times after the first one left, want 2", l.asked)
		}
		close(release)
		wg.Wait()
		time.Sleep(vocabularyHolds - time.Millisecond)
		if is, err := l.want(t.Context()); !is || err != nil || l.asked != 2 {
			t.Errorf("%v, %v after %d questions: an answer holds for a minute", is, err, l.asked)
		}
		time.Sleep(time.Millisecond)
		if _, err := l.want(t.Context()); err != nil || l.asked != 3 {
			t.Errorf("%v after %d questions: an answer holds for a minute only", err, l.asked)
		}
	})
}

// TestVocabularyNobodySays: engines that do not say it are asked seldom, however many requests there are, and at the
// latest after vocabularyMost.
func TestVocabularyNobodySays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := errors.New("no such path")
		l := &vocabularyLab{answer: func(context.Context) ([]uint32, error) { return nil, fails }}
		for range 3000 { // five minutes
			if _, err := l.want(t.Context()); !errors.Is(err, fails) {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if l.asked < 10 || l.asked > 25 {
			t.Errorf("asked %d times in five minutes", l.asked)
		}
		l.answer = func(context.Context) ([]uint32, error) { return []uint32{1}, nil }
		time.Sleep(vocabularyMost)
		if is, err := l.want(t.Context()); is || err != nil {
			t.Errorf("%v, %v once an engine says it", is, err)
		}
	})
}

// TestVocabularyIsNotRefusedToOthers: that engines do not take the key of who asks is not remembered, and who waited
// asks then.
func TestVocabularyIsNotRefusedToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused, release := errors.New("401"), make(chan struct{})
		l := &vocabularyLab{answer: func(context.Context) ([]uint32, error) {
			<-release
			return nil, &AskerError{refused}
		}}
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := l.want(t.Context()); !errors.Is(err, refused) {
				t.Errorf("who is refused has %v", err)
			}
		})
		synctest.Wait()
		l.answer = func(context.Context) ([]uint32, error) { return harmonyIDs, nil }
		wg.Go(func() {
			if is, err := l.want(t.Context()); !is || err != nil {
				t.Errorf("who waited has %v, %v", is, err)
			}
		})
		synctest.Wait()
		close(release)
		wg.Wait()
		if l.asked != 2 {
			t.Errorf("asked %d times, want 2", l.asked)
		}
	})
}
