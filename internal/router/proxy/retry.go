package proxy

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/internal/pace"
	"github.com/kvatlas/kvatlas/route"
)

// budget lets retries be a share of all requests, and a burst of them come at once:
// those that a worker had when it died, and those of a quiet router.
type budget struct {
	share, burst float64
	mu           sync.Mutex
	left         float64
	begun        bool
}

func (b *budget) request() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.begun {
		b.begun = true
		if b.share > 0 {
			b.left = b.burst
		}
	}
	b.left = math.Min(b.burst, b.left+b.share)
}

func (b *budget) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// retries is what one request has tried.
type retries struct {
	n      int
	pace   pace.Pace
	faults int           // attempts at which engines failed as if by its own fault
	blames []route.Blame // of these
}

// fault notes such an attempt; true: it is the second, so it is the request's fault and not theirs.
func (q *call) fault(t *retries, f *failure) bool {
	t.faults++
	t.blames = append(t.blames, f.blame, f.prefill)
	if t.faults < 2 {
		return false
	}
	for _, b := range t.blames {
		q.m.Router.Withdraw(b)
	}
	t.blames = nil
	return true
}

// maxRetryWait bounds the pause before a further retry.
const maxRetryWait = time.Second

// pardon takes back what an engine was blamed for where no other can tell whose fault it is.
func (q *call) pardon(f *failure) {
	if f != nil && f.weak {
		q.m.Router.Withdraw(f.blame)
		q.m.Router.Withdraw(f.prefill)
	}
}

// again decides whether the request goes to another worker after a failure, and waits
// for its time.
func (p *Proxy) again(ctx context.Context, q *call, t *retries, f *failure) bool {
	// Of two failures one may have been the pair's: who was avoided for it may do all of the request.
	if f.fault && q.fault(t, f) && !q.unavoid() {
		p.obs.requestFaults.Inc()
		return false
	}
	if f.retry == "" || t.n >= p.cfg.Retries || q.final() {
		q.pardon(f)
		return false
	}
	if !p.budget.take() {
		p.obs.retriesDenied.Inc()
		q.pardon(f)
		return false
	}
	p.obs.retries[f.retry].Inc()
	if t.n++; t.n > 1 { // the first goes at once: it is to another engine
		now := time.Now()
		select {
		case <-time.After(t.pace.Later(now, now, p.cfg.RetryWait, maxRetryWait, uint64(now.UnixNano()))):
		case <-ctx.Done():
		}
	}
	return true
}
