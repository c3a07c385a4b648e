package ingest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/internal/pace"
)

// places are the recoveries that may ask at a time, shared by publisher: one of many
// ranks, or one that does not answer, never keeps the others waiting. It is safe for
// concurrent use.
//   - A free place goes to the publisher that has the fewest, of those to the one that
//     has waited longest.
//   - No publisher has more than half of them: what comes next finds one.
type places struct {
	mu      sync.Mutex
	all     int
	taken   int
	by      map[string]*asker // those that have places, wait for one, or are silent
	waiting []*waiter         // oldest first
	clean   int               // look for silences of long ago at that many in by
}

// asker is a publisher as the places know it.
type asker struct {
	taken   int
	silence pace.Pace // between tries, while it does not answer
	wait    int       // recoveries that wait for a place
}

type waiter struct {
	subject string
	ready   chan struct{} // closed when it has its place
}

func newPlaces(n int) *places { return &places{all: n, by: make(map[string]*asker)} }

func (p *places) askerLocked(subject string) *asker {
	a := p.by[subject]
	if a == nil {
		a = new(asker)
		p.by[subject] = a
	}
	return a
}

// forgetLocked drops what need not be known of the publisher.
func (p *places) forgetLocked(subject string, a *asker) {
	if a.taken == 0 && a.wait == 0 && a.silence == (pace.Pace{}) {
		delete(p.by, subject)
	}
}

// take waits for a place, until ctx ends.
func (p *places) take(ctx context.Context, subject string) error {
	w := &waiter{subject, make(chan struct{})}
	p.mu.Lock()
	p.waiting = append(p.waiting, w)
	p.askerLocked(subject).wait++
	p.placeLocked()
	p.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting, w); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		a := p.by[subject]
		a.wait--
		p.forgetLocked(subject, a)
	} else {
		p.giveBackLocked(subject)
	}
	return context.Canceled
}

// giveBack ends what take began.
func (p *places) giveBack(subject string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.giveBackLocked(subject)
}

func (p *places) giveBackLocked(subject string) {
	a := p.by[subject]
	a.taken--
	p.taken--
	p.placeLocked()
	p.forgetLocked(subject, a)
}

// placeLocked gives free places to those that wait.
func (p *places) placeLocked() {
	for p.taken < p.all {
		best := -1
		for i, w := range p.waiting {
			n := p.by[w.subject].taken
			if n < max(1, p.all/2) && (best < 0 || n < p.by[p.waiting[best].subject].taken) {
				if best = i; n == 0 {
					break
				}
			}
		}
		if best < 0 {
			return
		}
		w := p.waiting[best]
		p.waiting = slices.Delete(p.waiting, best, best+1)
		a := p.by[w.subject]
		a.wait--
		a.taken++
		p.taken++
		close(w.ready)
	}
}

// silentFor returns for how long the publisher is not to be asked: it did not answer.
func (p *places) silentFor(subject string, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.by[subject]; a != nil {
		return a.silence.Next().Sub(now)
	}
	return 0
}

// outcome notes whether the publisher answered what was asked at begun. Those of
// several ranks that were asked at once are one silence.
func (p *places) outcome(subject string, answered bool, begun, now time.Time, c *Config, seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.by) >= max(p.clean, 64) {
		maps.DeleteFunc(p.by, func(_ string, a *asker) bool { return a.taken+a.wait == 0 && now.Sub(a.silence.Next()) > c.RecoverMax })
		p.clean = 2 * len(p.by)
	}
	a := p.askerLocked(subject)
	switch {
	case answered:
		a.silence = pace.Pace{}
		p.forgetLocked(subject, a)
	case !begun.Before(a.silence.Next()):
		a.silence.Later(begun, now, c.RecoverMin, c.RecoverMax, seed)
	}
}
