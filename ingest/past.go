package ingest

import (
	"sync"
	"time"
)

// Recovery is one that is over.
type Recovery struct {
	RankID
	Cause Cause
	Began time.Time
	Took  time.Duration
	Dump  bool  // all that the rank holds was taken; else events
	Err   error // why nothing was; nil: it ended well
}

// maxPast is how many recoveries are remembered.
const maxPast = 200

// pastRecoveries are the last ones. The mutex is held to copy.
type pastRecoveries struct {
	mu   sync.Mutex
	list []Recovery // oldest first from next on, once it is full
	next int
}

func (p *pastRecoveries) add(r Recovery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.list) < maxPast {
		p.list = append(p.list, r)
		return
	}
	p.list[p.next] = r
	p.next = (p.next + 1) % maxPast
}

// Recoveries returns the last recoveries that are over, newest first.
func (in *Ingest) Recoveries() []Recovery {
	if in.recoveries == nil {
		return nil
	}
	p := &in.recoveries.past
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]Recovery, 0, len(p.list))
	for i := range p.list {
		list = append(list, p.list[(p.next+len(p.list)-1-i)%len(p.list)])
	}
	return list
}
