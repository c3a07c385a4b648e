package tokens_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/modelfiles"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
)

// Files that do not come, and engines that do not answer, hold up no other model.
func TestSlowModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, tokentest.Template, 0)
		slow := s.set(tokentest.Template + "!")
		s.slow = modelfiles.ID(slow)
		mute := [][]modelfiles.File{}
		for range 20 {
			mute = append(mute, s.set(tokentest.Template))
		}
		var hang atomic.Bool
		hang.Store(true)
		s.silent = func(q tokens.Question) error {
			if q.Space.Model == "mute" && hang.Load() {
				time.Sleep(10 * time.Second)
				return context.DeadlineExceeded
			}
			return nil
		}
		s.serve(map[string][][]modelfiles.File{"slow": {slow}, "mute": mute})
		s.run()
		s.status("mute")
		s.serve(map[string][][]modelfiles.File{"slow": {slow}, "mute": mute, "one": {s.set(tokentest.Template)}, "two": {s.set(tokentest.Template)}})
		for _, model := range []string{"one", "two"} {
			if x := s.status(model); x.States["chats"] != "trusted" || x.Compared != 1 {
				t.Errorf("%+v", x)
			}
		}
		hang.Store(false)
		time.Sleep(2 * time.Minute)
		if x := s.status("mute"); x.Compared != 20 {
			t.Errorf("they answer by now: %+v", x)
		}
		if x := s.status("slow"); x.Error == "" || x.Files == "" {
			t.Errorf("%+v", x)
		}
	})
}

// A model of which nothing is proven, so that each of its requests is to be compared, takes nothing
// of the rate from others, also where its engine takes long.
func TestSamplesAreShared(t *testing.T) {
	for _, takes := range []time.Duration{0, 9 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := newShop(t, tokentest.Template, 0)
			space := func(model string) event.Space { return event.Space{Model: model, BlockSize: 16} }
			var proven, unproven atomic.Int64
			s.silent = func(q tokens.Question) error {
				if q.Space == space("proven") {
					proven.Add(1)
					return nil
				}
				unproven.Add(1)
				time.Sleep(takes)
				return tokens.ErrSilent
			}
			files := s.set(tokentest.Template)
			s.serve(map[string][][]modelfiles.File{"proven": {files}, "unproven": {files}})
			s.run()
			s.status("proven")
			proven.Store(0)
			unproven.Store(0)
			for i := range 20_000 { // of which a hundredth is the proven one's
				sp := space("unproven")
				if i%100 == 99 {
					sp = space("proven")
				}
				_, _ = s.source.Of(sp).Tokens(t.Context(), tokens.Request{Body: []byte(`{"prompt":"x"}`)})
				time.Sleep(time.Millisecond)
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			// In 20 s at most 10 a second of both, a half for each.
			if n := proven.Load(); n < 80 || n > 120 {
				t.Errorf("engines that take %v: %d of the proven model were compared, and %d", takes, n, unproven.Load())
			}
		})
	}
}

// A template writes the time, which passes while an engine answers: that is no difference.
func TestTheDateTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, `{{ strftime_now("%H:%M:%S") }}`+tokentest.Template, 0)
		asked := 0
		s.silent = func(tokens.Question) error {
			asked++
			<-time.After(300 * time.Millisecond)
			return nil
		}
		s.serve(map[string][][]modelfiles.File{"m": {s.set(`{{ strftime_now("%H:%M:%S") }}` + tokentest.Template)}})
		s.run()
		if x := s.status("m"); x.States["chats"] != "trusted" || asked < 6 {
			t.Errorf("after %d questions: %+v, %+v", asked, x, x.Difference)
		}
	})
}
