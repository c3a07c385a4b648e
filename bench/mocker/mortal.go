package mocker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// errDead says that there is no engine to ask.
var errDead = errors.New("all engines are dead")

// mortal is the worker that dies now and then, and returns with nothing, as a process that
// is killed and started again; the zero value is of none. It is the goroutine's of Run.
type mortal struct {
	cfg    *Config
	open   func(ctx context.Context, sp event.Space, worker uint64) (Publisher, error)
	worker int // counted from 0
	dead   bool
	at     time.Duration // of the next turn
}

func newMortal(cfg *Config, open func(ctx context.Context, sp event.Space, worker uint64) (Publisher, error)) (mortal, error) {
	if cfg.DieEvery == 0 {
		return mortal{}, nil
	}
	if cfg.EventsOut != "" {
		return mortal{}, errors.New("--events-out records one life of each worker: leave it out, or --die-every")
	}
	return mortal{cfg: cfg, open: open, worker: cfg.mortal(), at: cfg.DieEvery}, nil
}

// mortal returns the worker that dies, counted from 0.
func (c *Config) mortal() int { return max(0, c.Workers-2) }

// Dies reports whether the worker does, now and then.
func (c *Config) Dies(worker uint64) bool {
	return c.DieEvery > 0 && worker == uint64(c.FirstWorker+c.mortal())
}

// has reports whether an engine is its, while it is dead.
func (m *mortal) has(engine int) bool { return m.dead && engine/m.cfg.DPRanks == m.worker }

// next returns when it dies or returns; ok is false if never.
func (m *mortal) next() (at time.Duration, ok bool) { return m.at, m.cfg != nil }

// turn has it die, or return.
func (r *run) turn(now time.Duration) error {
	m := &r.mortal
	if m.dead {
		m.dead, m.at = false, now+m.cfg.DieEvery
		p, err := m.open(r.ctx, r.cfg.Space(), uint64(r.cfg.FirstWorker+m.worker))
		if err != nil {
			return fmt.Errorf("publish for worker %d, which returns: %w", r.cfg.FirstWorker+m.worker, err)
		}
		r.pubs[m.worker] = p
		return nil
	}
	m.dead, m.at = true, now+m.cfg.DieFor
	r.kill(m.worker)
	return r.abandon(m.worker, now)
}

// kill ends a worker's publisher as the end of its process would.
func (r *run) kill(worker int) {
	ctx, cancel := context.WithCancel(r.ctx)
	cancel() // it waits for nothing
	if p, ok := r.pubs[worker].(interface{ Kill() }); ok {
		p.Kill()
	}
	_ = r.pubs[worker].Close(ctx) // what it has not sent is lost
	r.pubs[worker] = gone{}
}

// gone is the publisher of a worker that is dead.
type gone struct{}

func (gone) Publish(context.Context, event.Event) error { return errDead }
func (gone) Flush(context.Context) error                { return nil }
func (gone) Close(context.Context) error                { return nil }

// abandon puts engines that hold nothing in the worker's places, and sends what it had not
// answered to others.
func (r *run) abandon(worker int, now time.Duration) error {
	for e := worker * r.cfg.DPRanks; e < (worker+1)*r.cfg.DPRanks; e++ {
		for i := 0; i < len(r.outcomes); { // its last words are out
			if r.outcomes[i].engine == e {
				r.tell(i)
			} else {
				i++
			}
		}
		fresh, err := r.cfg.newEngine(e, r.sink(e))
		if err != nil {
			return err
		}
		held, lost := r.fleet.Replace(e, fresh)
		r.counts.lostBlocks.Add(int64(held))
		for i := range lost {
			r.counts.lost.Add(1)
			if r.cfg.Through != nil {
				r.cfg.Through.Failed(lost[i].ID)
			}
			if err := r.send(now, "", &lost[i]); err != nil {
				return err
			}
		}
	}
	return nil
}
