package zmqfeed

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
)

// While a machine sleeps, or a VM is halted, connections may die that it does not hear of: what an engine has published
// meanwhile is asked for on a new one, and not taken to be known until then.
func TestASleepOfTheMachineEndsASubscription(t *testing.T) {
	t.Run("live", func(t *testing.T) { sleepEndsASubscription(t, false) })
	t.Run("as it begins", func(t *testing.T) { sleepEndsASubscription(t, true) })
}

func sleepEndsASubscription(t *testing.T, atOnce bool) {
	p := publisher(t, enginepub.Config{})
	publish(p, 1, 3)
	r := newRecorder(t)
	cfg := config(p)
	cfg.ProbeMin = -1 // nothing else tells
	f, err := New(cfg, r)
	if err != nil {
		t.Fatal(err)
	}
	var slept atomic.Int64 // seconds
	f.now = func() time.Time {
		now := time.Now()
		(*[2]uint64)(unsafe.Pointer(&now))[0] += uint64(slept.Load()) << 30 // of the clock of the day, see time.Time
		return now
	}
	if atOnce {
		f.dial = func(ctx context.Context, endpoint string, as zmtp.Type, o zmtp.Options) (*zmtp.Conn, error) {
			c, err := zmtp.Dial(ctx, endpoint, as, o)
			if endpoint == cfg.Endpoint {
				slept.Store(600)
			}
			return c, err
		}
	}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() { f.Run(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	if !atOnce {
		subscribed(r, p)
		slept.Store(600)
	}
	r.until("what is known is said to be of before, and why", func() bool {
		return slices.ContainsFunc(r.states, func(s State) bool { return s.Phase == Connecting && errors.Is(s.Err, errSlept) })
	})
	subscribed(r, p)
	publish(p, 1, 3)
	r.reach(6)
	r.holds(1, 0, 6)
	if s := f.Stats(); s.Slept != 1 || s.Connects != 2 || s.Lost != [NumReasons]uint64{} {
		t.Errorf("%+v", s)
	}
}
