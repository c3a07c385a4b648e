package mocker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/event"
)

// Publisher takes the events of one worker; publish.Publisher is one.
type Publisher interface {
	// Publish takes an event and copies its slices. It waits while there is no
	// room.
	Publish(ctx context.Context, ev event.Event) error
	// Flush waits until everything accepted so far is acknowledged, or ctx ends.
	Flush(ctx context.Context) error
	// Close flushes and ends the publisher.
	Close(ctx context.Context) error
}

// Broker is where a run publishes.
type Broker struct {
	// Open makes the publisher of a worker.
	Open func(ctx context.Context, sp event.Space, worker uint64) (Publisher, error)
	// Pending tells the bytes that are not acknowledged yet.
	Pending func() int64
}

// closeWait bounds how long a run that is told to end waits for
// acknowledgements.
const closeWait = 3 * time.Second

type sink = func(*event.Event)

// run is the state of one Run.
type run struct {
	cfg     *Config
	ctx     context.Context // of the one call of Run, for the engines' sinks
	fleet   *mock.Fleet
	feed    *feed
	router  *router
	hasher  *trace.Hasher
	pubs    []Publisher // by worker, counted from 0
	record  *recorder   // nil: none
	ids     []uint64    // events of each engine so far
	counts  counters
	started time.Time
	err     error // the first error of a sink

	arriving trace.Request
	local    []uint64 // its hashes
	checked  int      // steps since ctx was looked at
	mortal   mortal
	outcomes []outcome // that Config.Through is yet to be told, in the order of time
}

// Run runs the fleet until its requests end or ctx does. The end of ctx is an
// orderly end. Progress goes to out.
func Run(ctx context.Context, cfg *Config, broker Broker, out *os.File) (err error) {
	r := &run{cfg: cfg, ctx: ctx, router: newRouter(cfg), ids: make([]uint64, cfg.engines())}
	sp := cfg.Space()
	if r.feed, err = newFeed(cfg); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.feed.close()) }()
	r.hasher = trace.NewHasher(r.feed.src.IDTokens(), cfg.Engine.BlockSize)
	if r.fleet, err = cfg.newFleet(r.sink); err != nil {
		return err
	}
	if r.mortal, err = newMortal(cfg, broker.Open); err != nil {
		return err
	}
	if cfg.EventsOut != "" {
		if r.record, err = newRecorder(cfg.EventsOut, sp); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.record.close()) }()
	}
	defer func() { err = errors.Join(err, r.closePublishers()) }()
	for i := range cfg.Workers {
		p, err := broker.Open(ctx, sp, uint64(cfg.FirstWorker+i))
		if err != nil {
			return unlessEnded(ctx, fmt.Errorf("publish for worker %d: %w", cfg.FirstWorker+i, err))
		}
		r.pubs = append(r.pubs, p)
	}

	r.started = time.Now()
	stop := r.progress(broker.Pending, out)
	defer func() { stop(err == nil) }()
	err = r.loop()
	for i := 0; i < len(r.pubs) && err == nil; i++ {
		err = r.pubs[i].Flush(ctx)
	}
	if err == nil && r.record != nil { // whole while the workers live, for who compares what is known of them
		err = r.record.flush()
	}
	if err == nil && cfg.AtEnd == EndWait {
		r.counts.idle.Store(true)
		<-ctx.Done()
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil
	}
	return err
}

func (r *run) closePublishers() (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), closeWait)
	defer cancel()
	for _, p := range r.pubs {
		err = errors.Join(err, p.Close(ctx))
	}
	return err
}

// progress starts printing lines, and returns what ends that, with a last line.
func (r *run) progress(pending func() int64, out *os.File) (stop func(done bool)) {
	if r.cfg.Progress == ProgressNone {
		return func(bool) {}
	}
	p := &printer{
		out: out, start: r.started, tail: r.cfg.Tail, json: r.cfg.Progress == ProgressJSON || r.cfg.Progress == ProgressAuto && r.cfg.Tail == nil && !isTerminal(out),
		state: func(seconds float64, before *Progress) Progress { return r.counts.read(seconds, pending(), before) },
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() { p.run(ctx) })
	return func(done bool) {
		cancel()
		wait.Wait()
		p.print(done)
	}
}

func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// sink returns what takes the events of an engine.
func (r *run) sink(engine int) sink {
	worker := engine / r.cfg.DPRanks
	return func(ev *event.Event) {
		if r.err != nil {
			return
		}
		if r.err = r.pubs[worker].Publish(r.ctx, *ev); r.err != nil {
			return
		}
		r.counts.events.Add(1)
		switch ev.Kind {
		case event.Stored:
			r.counts.stored.Add(int64(len(ev.Engine)))
		case event.Removed:
			r.counts.removed.Add(int64(len(ev.Engine)))
		}
		if r.record != nil {
			r.ids[engine]++
			r.err = r.record.add(uint64(r.cfg.FirstWorker+worker), r.ids[engine], ev)
		}
	}
}

// loop passes requests and steps engines in the order of virtual time until
// both are at their end.
func (r *run) loop() error {
	more, err := r.arrive()
	for err == nil {
		at, busy := r.fleet.Next()
		if next, mortal := r.mortal.next(); mortal && (more || busy) && (!busy || next <= at) && (!more || next <= r.arriving.Arrival) {
			if err = r.pace(next); err == nil {
				err = r.turn(next)
			}
			continue
		}
		switch {
		case len(r.outcomes) > 0 && (!busy || r.outcomes[0].at <= at) && (!more || r.outcomes[0].at <= r.arriving.Arrival):
			if err = r.pace(r.outcomes[0].at); err != nil {
				return err
			}
			r.tell(0)
		case more && (!busy || r.arriving.Arrival <= at):
			if err = r.pace(r.arriving.Arrival); err != nil {
				return err
			}
			if err = r.admit(); err == nil {
				more, err = r.arrive()
			}
		case busy:
			if err = r.pace(at); err != nil {
				return err
			}
			engine, _, end, report := r.fleet.Step()
			r.count(report)
			r.later(engine, end, report)
			err = r.err
		default:
			return nil
		}
	}
	return err
}

// arrive reads the next request; more is false after the last.
func (r *run) arrive() (more bool, err error) {
	err = r.feed.next(&r.arriving)
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	return err == nil, err
}

// admit passes the request that arrives to an engine, or counts that it was refused, as a
// client would be.
func (r *run) admit() error {
	q := &r.arriving
	r.local = r.hasher.Output(r.hasher.Prompt(r.local[:0], q), q)
	return r.send(q.Arrival, q.Session, &mock.Request{ID: q.Serial, Input: q.Input, Output: q.Output, Local: r.local})
}

// send passes a request to an engine.
func (r *run) send(now time.Duration, session string, q *mock.Request) error {
	e, ok := r.choose(q, session)
	err := errDead
	if ok {
		err = r.fleet.Admit(now, e, q)
	}
	switch {
	case err == nil:
		r.counts.requests.Add(1)
		r.counts.promptTokens.Add(int64(q.Input))
	case errors.Is(err, mock.ErrTooLarge) || errors.Is(err, mock.ErrBusy) || errors.Is(err, errDead):
		r.counts.refused.Add(1)
		if r.cfg.Through != nil {
			r.cfg.Through.Ended(q.ID)
		}
	default:
		return fmt.Errorf("request %d: %w", q.ID, err)
	}
	return nil
}

func (r *run) count(report *mock.Report) {
	for _, b := range report.Began {
		if !b.Again { // what a preempted request finds again is its own
			r.counts.reusedTokens.Add(int64(b.Reused))
		}
	}
	r.counts.finished.Add(int64(len(report.Finished)))
}

// pace waits until the clock reaches the virtual time at, or ctx ends.
func (r *run) pace(at time.Duration) error {
	r.counts.virtual.Store(int64(at))
	if r.cfg.Speed == 0 {
		if r.checked++; r.checked%256 == 0 {
			return r.ctx.Err()
		}
		return nil
	}
	wait := time.Duration(float64(at)/r.cfg.Speed) - time.Since(r.started)
	r.counts.behind.Store(int64(max(0, -wait)))
	if wait < time.Millisecond { // timers are no finer
		return r.ctx.Err()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}
