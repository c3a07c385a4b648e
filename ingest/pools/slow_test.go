package pools

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// TestAMasterThatStandsStill: one whose connection stays and that says no more is away once its keys cannot be
// listed either; one whose keys cannot be listed, and that goes on saying what changes, is not.
func TestAMasterThatStandsStill(t *testing.T) {
	s, x := newStore(t), &index{has: map[uint64]bool{}}
	s.say(true, false, 1, 0, 1)
	f := follow(t, s, x, func(c *Config) { c.Relist, c.ListLimit = 20*time.Millisecond, 50*time.Millisecond })
	x.is(t, f, "listed", true, 1)
	still := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(still) })
	t.Cleanup(goOn) // before the server waits for who asks it
	s.mu.Lock()
	s.hold = still
	s.mu.Unlock()
	x.is(t, f, "it stands still", false)
	s.mu.Lock()
	s.hold = nil
	s.mu.Unlock()
	goOn()
	x.is(t, f, "it goes on", true, 1)
}

// TestKeysThatNeverEnd: a list that trickles is given up, and nobody waits for it.
func TestKeysThatNeverEnd(t *testing.T) {
	s, x := newStore(t), &index{has: map[uint64]bool{}}
	lists := make(chan struct{}, 1000)
	trickle := time.NewTicker(time.Millisecond)
	t.Cleanup(trickle.Stop)
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case lists <- struct{}{}:
		default:
		}
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte(objectKey(0, 7) + "\n")); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
			<-trickle.C
		}
	}))
	t.Cleanup(keys.Close)
	f := New(Config{ListLimit: 20 * time.Millisecond, RetryMin: time.Millisecond, RetryMax: time.Millisecond}, "p",
		&event.PoolSource{Events: s.pub.Endpoint(), Keys: keys.URL, Prefix: "d@m", Parts: 1}, x)
	runFollower(t, f) // which ends at the end
	for range 3 {
		<-lists
	}
	x.is(t, f, "never read", false)
	if st := f.Status(); st.Lists > 0 || st.Readable {
		t.Errorf("%+v", st)
	}
}
