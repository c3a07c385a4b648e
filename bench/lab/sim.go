package lab

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

// sim is a run.
type sim struct {
	cfg     Config
	source  trace.Source
	ahead   *ahead  // of source
	hasher  *hasher // of what comes in turns
	now     time.Duration
	doing   kind // what happens now
	agenda  agenda
	plain   bool // nobody leaps
	set     *shard.Set
	feed    *feed
	routers []*route.Router
	lines   []line // of each router
	doubted []int  // workers that are to be read anew
	told    []told
	workers []*worker

	sessions map[string]*session      // in a closed loop, those that are not over
	turns    []string                 // sessions whose next request is on the agenda, by its number there
	went     map[string]route.Session // where a session's last request went, if routers are told
	coming   *arrival                 // the next to arrive
	requests []request                // by number; a number is used again after its request
	spare    []int
	serial   int // of the next request

	result  Result
	samples sampler
}

// worker is an engine in time.
type worker struct {
	engine  *mock.Engine
	present bool
	busy    bool         // a step is under way, or about to start
	report  *mock.Report // of the step under way
	epoch   int          // of the present engine: a dead one's agenda is void
	slow    float64
	live    int           // requests there
	link    time.Duration // until when it gives or takes a prefix
	worked  time.Duration // in steps
	leap    leap
}

// request is one under way.
type request struct {
	key, session   string
	serial, number int // number is its own in requests
	arrival, first time.Duration
	begun, present bool // has its first token; the number is in use
	again          int  // how often it was sent again
	input, output  int
	hashes
	prompt          []uint64 // the first of local
	router          int
	worker, prefill int           // prefill is -1 for none, or once it is done
	source, fetched int           // worker to fetch its prefix from, below 0 for none; blocks of that
	fetch           time.Duration // when they are there; 0 if they are not on their way
	reused          int           // tokens that the engine of its prompt found cached
	stage           stage
}

// Run simulates the fleet until the last request of the source has ended. The
// error is the context's, the source's, or says which setting is out of range.
func Run(ctx context.Context, cfg Config, source trace.Source) (*Result, error) {
	if cfg.bound != Unheld {
		if err := cfg.check(); err != nil {
			return nil, err
		}
		return runBound(ctx, cfg, source)
	}
	s, err := newSim(cfg, source)
	if err != nil {
		return nil, err
	}
	defer s.close()
	for n := 0; ; n++ {
		if n%4096 == 0 {
			if err := ctx.Err(); err != nil {
				return nil, fmt.Errorf("lab: %w", err)
			}
			if cfg.Progress != nil {
				cfg.Progress(s.serial, s.result.Requests)
			}
		}
		if more, err := s.step(); err != nil {
			return nil, err
		} else if !more {
			return s.finish()
		}
	}
}

func newSim(cfg Config, source trace.Source) (*sim, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	// Leases are for clients that vanish; here every request ends.
	cfg.Route.Lease = 0
	s := &sim{
		cfg: cfg, source: source, went: make(map[string]route.Session), hasher: newHasher(source.IDTokens(), &cfg.Engine),
		set: shard.New(shard.Config{Inline: true}),
	}
	space, err := s.set.Open(event.Space{Model: "lab", BlockSize: uint32(cfg.Engine.BlockSize)})
	if err == nil {
		s.feed = newFeed(space, &cfg)
		if cfg.PoolBlocks > 0 {
			s.cfg.Engine.Shared = mock.NewShared(cfg.PoolBlocks)
		}
		err = s.prepare()
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("lab: %w", err)
	}
	return s, nil
}

// close ends the index, and the reading of the source.
func (s *sim) close() {
	s.set.Close()
	if s.ahead != nil {
		s.ahead.stop()
	}
}

// step lets the next thing happen. It returns false if there is none.
func (s *sim) step() (more bool, err error) {
	h, ok := s.agenda.next()
	for ok && s.void(&h) {
		h, ok = s.agenda.next()
	}
	if !ok {
		return false, nil
	}
	if len(s.told) > 0 {
		s.spread(h.at)
	}
	s.samples.until(h.at, s.workers)
	s.now, s.doing = h.at, h.kind
	if err := s.happen(h); err != nil {
		return false, err
	}
	return true, s.release()
}

func (s *sim) prepare() error {
	if err := s.makeRouters(); err != nil {
		return err
	}
	absent := map[int]bool{}
	for i, f := range s.cfg.Faults {
		s.agenda.add(s.now, f.At, faultStrikes, i)
		absent[f.Worker] = absent[f.Worker] || f.Kind == Joins
	}
	s.samples.init(s.cfg.Workers + s.cfg.PrefillWorkers)
	for i := range s.cfg.Workers + s.cfg.PrefillWorkers {
		w := &worker{slow: 1}
		if f, ok := s.cfg.Slow[i]; ok {
			w.slow = f
		}
		s.workers = append(s.workers, w)
		if !absent[i] {
			if err := s.join(i); err != nil {
				return err
			}
		}
	}
	if s.cfg.ClosedLoop {
		if err := s.closeLoop(); err != nil {
			return err
		}
	}
	s.ahead = readAhead(s.source, s.cfg.Engine, s.cfg.Requests)
	return s.readNext()
}

// join makes a worker's engine, empty.
func (s *sim) join(i int) error {
	engine, err := mock.New(s.cfg.Engine, s.feed.apply)
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	w := s.workers[i]
	w.engine, w.present, w.busy = engine, true, false
	w.epoch++
	if s.cfg.PoolBlocks > 0 {
		if err := s.feed.space.SetPools(context.Background(), uint64(i), []uint32{0}, []event.Pool{{Name: "pool"}}); err != nil {
			return fmt.Errorf("lab: %w", err)
		}
	}
	return s.register(i)
}

func (s *sim) happen(h happening) error {
	switch h.kind {
	case stepStarts, stepEnds:
		i, epoch := h.of%maxWorkers2, h.of/maxWorkers2
		if w := s.workers[i]; w.epoch != epoch || !w.present {
			return nil // it died meanwhile
		}
		if h.kind == stepStarts {
			return s.startStep(i)
		}
		if h.leap > 0 {
			s.passed(i, s.workers[i].leap.steps, s.now)
		}
		return s.endStep(i)
	case faultStrikes:
		return s.strike(s.cfg.Faults[h.of])
	case promptArrives:
		return s.handOver(h.of)
	case blocksArrive:
		if q := &s.requests[h.of]; q.present && q.fetch == s.now {
			q.fetch = 0
			return s.compute(h.of)
		}
		return nil // its worker has died meanwhile
	case requestArrives:
		if err := s.arrive(s.coming); err != nil {
			return err
		}
		return s.readNext()
	case settles:
		if err := s.place(h.of); !errors.Is(err, route.ErrLater) {
			return err
		}
		return s.waits(h.of)
	case turnComes:
		return s.turn(s.turns[h.of])
	}
	return nil
}

const maxWorkers2 = 2 * maxWorkers // more than any worker's number

// plan puts a worker's next step on the agenda.
func (s *sim) plan(at time.Duration, k kind, i int) {
	s.agenda.add(s.now, at, k, s.workers[i].epoch*maxWorkers2+i)
}

// place sends a request to where its router says.
func (s *sim) place(n int) error {
	q := &s.requests[n]
	if err := s.choose(q); errors.Is(err, errSettles) {
		return nil
	} else if errors.Is(err, errRefused) {
		s.result.Refused++
		s.forget(n)
		return nil
	} else if err != nil {
		return err
	}
	if q.prefill >= 0 {
		return s.admit(n, q.prefill, &mock.Request{ID: uint64(n), Input: q.input, Local: q.prompt, Names: q.names[:len(q.prompt)]})
	}
	if s.fetches(n) {
		return nil
	}
	return s.compute(n)
}

// admit gives a request to a worker, which starts a step if it was idle.
func (s *sim) admit(n, i int, r *mock.Request) error {
	w := s.workers[i]
	s.land(i)
	if err := w.engine.Admit(r); err != nil {
		if !errors.Is(err, mock.ErrTooLarge) && !errors.Is(err, mock.ErrBusy) {
			return fmt.Errorf("lab: request %s: %w", s.requests[n].key, err)
		}
		s.result.Refused++
		s.routers[s.requests[n].router].Free(s.requests[n].key)
		s.forget(n)
		return nil
	}
	w.live++
	if !w.busy {
		w.busy = true
		s.plan(s.now, stepStarts, i)
	}
	return nil
}

func (s *sim) startStep(i int) error {
	w := s.workers[i]
	w.report = w.engine.Step()
	s.feed.publish(s.now, i)
	d := s.stepTime(i, s.now, w.report)
	if d <= 0 && len(w.report.First) == 0 && len(w.report.Finished) == 0 {
		return fmt.Errorf("lab: worker %d makes no progress at %v", i, s.now)
	}
	w.worked += d
	s.result.count(w.report)
	for _, id := range w.report.Preempted {
		s.goes(&s.requests[id], Preempted)
	}
	for _, b := range w.report.Began {
		s.runs(&s.requests[b.ID])
		if !b.Again && s.computes(int(b.ID), i) {
			s.requests[b.ID].reused = b.Reused
		}
	}
	if !s.leaps(i, s.now+d) {
		s.plan(s.now+d, stepEnds, i)
	}
	return nil
}

// stepTime is how long a worker's step takes that starts at the time.
func (s *sim) stepTime(i int, at time.Duration, r *mock.Report) time.Duration {
	return time.Duration(float64(s.cfg.Timing.Step(r)) * s.workers[i].slow * s.hour(i, at))
}

// hour is how many times longer a worker's step takes at this time of the day.
func (s *sim) hour(i int, at time.Duration) float64 {
	if s.cfg.Day == 0 {
		return 1
	}
	turns := float64(at)/float64(s.cfg.Day) + float64(i)/float64(len(s.workers))
	return 1 + (s.cfg.DaySlow-1)*(1-math.Cos(2*math.Pi*turns))/2
}

// endStep tells the routers what the step has brought.
func (s *sim) endStep(i int) error {
	w := s.workers[i]
	for _, id := range w.report.First {
		if err := s.firstToken(int(id), i); err != nil {
			return err
		}
	}
	for _, id := range w.report.Finished {
		w.live--
		if q := &s.requests[id]; q.prefill == i {
			if q.output <= 1 {
				if err := s.end(int(id)); err != nil {
					return err
				}
				continue
			}
			q.prefill = -1
			s.goes(q, Waiting)
			s.agenda.add(s.now, s.now+time.Duration(q.input)*s.cfg.Transfer, promptArrives, int(id))
			continue
		}
		if err := s.end(int(id)); err != nil {
			return err
		}
	}
	if w.engine.Idle() {
		w.busy = false
		return nil
	}
	s.plan(s.now, stepStarts, i)
	return nil
}

func (s *sim) firstToken(n, worker int) error {
	q := &s.requests[n]
	if !q.begun {
		q.begun, q.first = true, s.now
		s.goes(q, Decoding)
		s.result.first(q.first - q.arrival)
	}
	if s.cfg.PrefillWorkers > 0 { // whose booking ends with this
		if err := s.report(q, route.PrefillStage); err != nil {
			return err
		}
	}
	s.routers[q.router].MarkPrefillComplete(q.key)
	s.lines[q.router].freed = true
	return nil
}

// computes reports whether the request's prompt is computed on the worker.
func (s *sim) computes(n, worker int) bool {
	q := &s.requests[n]
	return q.prefill == worker || q.prefill < 0 && !q.begun
}

// report tells the request's router what was found cached of its prompt, and it compares
// that with what the index knows by now.
func (s *sim) report(q *request, stage route.Stage) error {
	if err := s.feed.sync(s.now); err != nil {
		return err
	}
	s.routers[q.router].Reported(q.key, stage, route.Prompt{Local: q.prompt, Length: q.input}, route.Usage{Prompt: q.input, Cached: q.reused})
	for _, w := range s.doubted {
		if err := s.feed.reread(s.now, w); err != nil {
			return err
		}
	}
	s.doubted = s.doubted[:0]
	return nil
}

// end takes a finished request out.
func (s *sim) end(n int) error {
	q := &s.requests[n]
	r := s.routers[q.router]
	if err := s.report(q, route.Whole); err != nil {
		return err
	}
	r.Output(q.key, q.output)
	r.Free(q.key)
	s.lines[q.router].freed = true
	s.goes(q, Decoding)
	s.result.ended(q, s.now, s.cfg.Targets)
	s.forget(n)
	return nil
}

func (s *sim) forget(n int) {
	s.answered(&s.requests[n])
	s.requests[n].present = false
	s.spare = append(s.spare, n)
}

// handOver gives a prompt that was computed elsewhere to its decode worker.
func (s *sim) handOver(n int) error {
	q := &s.requests[n]
	return s.admit(n, q.worker, &mock.Request{ID: uint64(n), Input: q.input, Output: q.output, Local: q.local, Names: q.names, Received: true})
}

// strike lets a fault happen.
func (s *sim) strike(f Fault) error {
	w := s.workers[f.Worker]
	s.land(f.Worker)
	if f.Kind == Slows {
		w.slow = f.Factor
		return nil
	}
	if f.Kind == Joins {
		if w.present {
			return nil
		}
		for i := range s.lines {
			s.lines[i].freed = true
		}
		return s.join(f.Worker)
	}
	if !w.present {
		return nil
	}
	w.present, w.busy, w.live, w.engine = false, false, 0, nil
	if err := s.feed.remove(s.now, f.Worker); err != nil {
		return err
	}
	for i, r := range s.routers {
		r.RemoveWorker(uint64(f.Worker))
		s.lines[i].freed = true
	}
	for n := range s.requests {
		if q := &s.requests[n]; q.present && (q.worker == f.Worker || q.prefill == f.Worker) {
			s.routers[q.router].Free(q.key)
			s.result.SentAgain++
			q.again++
			q.fetch = 0
			s.goes(q, Waiting)
			if err := s.lineUp(n); err != nil {
				return err
			}
		}
	}
	return nil
}
