package mockapi

import (
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
)

// job is a request in an engine.
type job struct {
	id       uint64 // the rank's goroutine sets and reads it
	request  mock.Request
	tokens   chan int   // how many more are out; room for all
	cached   chan int   // one value, once it runs
	refused  chan error // one value, if the engine does not take it
	begun    bool
	left     int
	finished bool
}

// engineRank is one engine and the goroutine that owns it.
type engineRank struct {
	engine *mock.Engine
	step   func(r *mock.Report) time.Duration
	calls  chan func() // run by the goroutine between steps
	stop   <-chan struct{}
	done   chan struct{}

	mu   sync.Mutex // of gone
	gone []*job     // whose client has left; the goroutine ends them between steps

	// Of the goroutine:
	jobs map[uint64]*job
	next uint64
}

func newEngineRank(cfg *Config, sink sink, dpRank uint32, stop <-chan struct{}) (*engineRank, error) {
	ec := cfg.Engine
	ec.DPRank = dpRank
	engine, err := mock.New(ec, sink)
	if err != nil {
		return nil, err
	}
	return &engineRank{
		engine: engine, step: cfg.Step, calls: make(chan func()), stop: stop, done: make(chan struct{}), jobs: make(map[uint64]*job),
	}, nil
}

// do has f run by the rank's goroutine; it fails when the engine has stopped.
func (k *engineRank) do(f func()) error {
	select {
	case k.calls <- f:
		return nil
	case <-k.stop:
		return errClosed
	}
}

// run steps the engine whenever there is work.
func (k *engineRank) run() {
	defer close(k.done)
	for {
		for more := true; more; { // whoever waits takes part in the next step
			if k.engine.Idle() {
				select {
				case f := <-k.calls:
					f()
				case <-k.stop:
					return
				}
				continue
			}
			select {
			case f := <-k.calls:
				f()
			case <-k.stop:
				return
			default:
				more = false
			}
		}
		if k.forget(); k.engine.Idle() {
			continue
		}
		r := k.engine.Step()
		if k.step != nil && !k.wait(k.step(r)) {
			return
		}
		k.report(r)
	}
}

// wait lets a step take its time, and requests come and go meanwhile. It reports
// false when the engine is to stop.
func (k *engineRank) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case f := <-k.calls:
			f()
		case <-k.stop:
			return false
		}
	}
}

// admit is called by the goroutine.
func (k *engineRank) admit(j *job) {
	k.next++
	j.id = k.next
	j.request.ID = k.next
	if err := k.engine.Admit(&j.request); err != nil {
		j.refused <- err
		return
	}
	k.jobs[j.id] = j
}

// abort has the request ended after the step under way, if it still runs then.
func (k *engineRank) abort(j *job) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gone = append(k.gone, j)
}

// forget is called by the goroutine.
func (k *engineRank) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, j := range k.gone {
		if k.jobs[j.id] == j {
			delete(k.jobs, j.id)
			k.engine.Abort(j.id)
		}
	}
	clear(k.gone)
	k.gone = k.gone[:0]
}

// load returns the engine's load; none when it has stopped.
func (k *engineRank) load() mock.Load {
	c := make(chan mock.Load, 1)
	if k.do(func() { c <- k.engine.Load() }) != nil {
		return mock.Load{}
	}
	return <-c
}

// report hands the tokens of a step to their requests. A request that goes on
// has one token a step; what a preemption delayed comes with its last one.
func (k *engineRank) report(r *mock.Report) {
	for _, b := range r.Began {
		if j := k.jobs[b.ID]; j != nil && !b.Again {
			j.cached <- b.Reused
		}
	}
	for _, id := range r.First {
		if j := k.jobs[id]; j != nil {
			j.begun = true
		}
	}
	for _, id := range r.Finished {
		if j := k.jobs[id]; j != nil {
			j.finished = true
			if j.left > 0 {
				j.tokens <- j.left
			}
			close(j.tokens)
			delete(k.jobs, id)
		}
	}
	for _, j := range k.jobs {
		if j.begun && j.left > 1 {
			j.left--
			j.tokens <- 1
		}
	}
}
