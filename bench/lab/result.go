package lab

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/account"
)

// Result is what a run did. Times are in ms of virtual time.
type Result struct {
	Requests  int // that ended with all of their output
	Refused   int // by the routers or an engine
	Within    int // of Requests: they kept Config.Targets
	SentAgain int // because their worker died
	Pulls     int // prefixes that workers fetched from each other
	Pulled    int // tokens of them

	PromptTokens int // of requests that ended
	OutputTokens int // of requests that ended
	Reused       int // prompt tokens found in the cache of their engine
	Computed     int // prompt tokens computed, those of preempted requests again
	Decoded      int // tokens computed of outputs
	ReusedAgain  int // found by requests that began again after a preemption
	// Loaded counts the blocks of the reused tokens that came from each lower
	// tier.
	Loaded     [event.NumTiers]int
	Lost       int // tokens thrown away by preemptions
	Preempted  int // how often a request gave its blocks up
	Steps      int
	Events     uint64 // published
	EventsLost uint64
	Dumps      uint64           // times that what a worker holds was read anew, as its engine's reports contradicted the index
	Index      core.Outcome     // what the index did
	Accounts   []account.Totals // of each router: what was reachable, selected and found
	Duration   time.Duration
	Worked     []time.Duration // of each worker, in steps
	Load       Series
	Spent      Spent // of requests that ended, summed up
	blockSize  int
	ttft, tpot []float64
	e2e        []float64
	session    []float64 // s, in a closed loop
}

// Times sums up one kind of time.
type Times struct{ Mean, P50, P99 float64 }

// Summary holds the figures of a run that are compared.
type Summary struct {
	Reuse           float64            // part of the prompt tokens that was found cached
	Loaded          float64            // part of them that was loaded from lower tiers, those of preempted requests again
	TTFT, TPOT, E2E Times              // to the first token, for each further token, to the end
	Session         Times              // in s, from its first request to the end of its last, in a closed loop
	OutputPerSecond float64            // tokens
	LoadMaxOverMean float64            // of the time that workers spend in steps
	Spent           [NumPhases]float64 // by a request, in the mean
}

func (r *Result) count(p *mock.Report) {
	r.Steps++
	r.Computed += p.Prefill
	r.Decoded += p.Decode
	r.Lost += p.Lost
	r.Preempted += len(p.Preempted)
	for t, n := range p.Loaded {
		r.Loaded[t] += n
	}
	for _, b := range p.Began {
		if b.Again {
			r.ReusedAgain += b.Reused
		} else {
			r.Reused += b.Reused
		}
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (r *Result) first(d time.Duration) { r.ttft = append(r.ttft, ms(d)) }

func (r *Result) ended(q *request, now time.Duration, t route.Targets) {
	r.Requests++
	if (t.FirstToken == 0 || q.first-q.arrival <= t.FirstToken) && (t.Token == 0 || float64(now-q.first) <= float64(q.output-1)*float64(t.Token)) {
		r.Within++
	}
	r.PromptTokens += q.input
	r.OutputTokens += q.output
	r.e2e = append(r.e2e, ms(now-q.arrival))
	for i, d := range q.stage.spent {
		r.Spent[i] += d
	}
	if q.output > 1 {
		r.tpot = append(r.tpot, ms(now-q.first)/float64(q.output-1))
	}
}

func (s *sim) finish() (*Result, error) {
	r, end := &s.result, s.now
	s.samples.until(s.now, s.workers)
	if err := s.feed.sync(1 << 62); err != nil {
		return nil, err
	}
	for n := range s.requests {
		if s.requests[n].present {
			return nil, fmt.Errorf("lab: request %s never ended", s.requests[n].key)
		}
	}
	s.spread(1 << 62)
	for i, router := range s.routers {
		if live := router.Stats().Live; live != 0 {
			return nil, fmt.Errorf("lab: router %d still has %d bookings after the last request", i, live)
		}
	}
	if len(s.sessions) > 0 {
		return nil, fmt.Errorf("lab: %d sessions never ended", len(s.sessions))
	}
	r.Duration, r.Load, r.blockSize = end, s.samples.series, s.cfg.Engine.BlockSize
	r.Events, r.EventsLost, r.Dumps, r.Index = s.feed.events, s.feed.lost, s.feed.dumps, s.feed.outcome
	for _, router := range s.routers {
		r.Accounts = append(r.Accounts, router.Totals())
	}
	for _, w := range s.workers {
		r.Worked = append(r.Worked, w.worked)
	}
	return r.sorted(), nil
}

func (r *Result) sorted() *Result {
	for _, v := range [][]float64{r.ttft, r.tpot, r.e2e, r.session} {
		slices.Sort(v)
	}
	return r
}

func sumUp(sorted []float64) (t Times) {
	if len(sorted) == 0 {
		return t
	}
	for _, v := range sorted {
		t.Mean += v
	}
	t.Mean /= float64(len(sorted))
	at := func(q float64) float64 { return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))] }
	t.P50, t.P99 = at(0.5), at(0.99)
	return t
}

// Summary sums the run up.
func (r *Result) Summary() Summary {
	s := Summary{TTFT: sumUp(r.ttft), TPOT: sumUp(r.tpot), E2E: sumUp(r.e2e), Session: sumUp(r.session)}
	if r.PromptTokens > 0 {
		s.Reuse = float64(r.Reused) / float64(r.PromptTokens)
		for _, n := range r.Loaded {
			s.Loaded += float64(n*r.blockSize) / float64(r.PromptTokens)
		}
	}
	for i, d := range r.Spent {
		s.Spent[i] = ms(d) / float64(max(r.Requests, 1))
	}
	if r.Duration > 0 {
		s.OutputPerSecond = float64(r.OutputTokens) / r.Duration.Seconds()
	}
	var most, sum time.Duration
	for _, w := range r.Worked {
		most, sum = max(most, w), sum+w
	}
	if sum > 0 {
		s.LoadMaxOverMean = float64(most) * float64(len(r.Worked)) / float64(sum)
	}
	return s
}
