package console

import "sync"

// places are a bounded number of which nobody takes all: a tenant gets no more than it
// leaves to others. Who may see all is bounded by their number alone.
type places struct {
	most int

	mu    sync.Mutex
	taken int
	of    map[string]int // by tenant
}

func newPlaces(most int) *places { return &places{most: most, of: make(map[string]int)} }

// take takes one for the tenant, or returns why there is none.
func (p *places) take(tenant *string) (why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch left := p.most - p.taken; {
	case left <= 0:
		return noPlace
	case tenant != nil && p.of[*tenant] >= left:
		return noShare
	}
	p.taken++
	if tenant != nil {
		p.of[*tenant]++
	}
	return ""
}

const (
	noPlace = "as many as may be are there"
	noShare = "this tenant has as many as are left to all others"
)

// give gives it back.
func (p *places) give(tenant *string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if tenant != nil {
		if p.of[*tenant]--; p.of[*tenant] == 0 {
			delete(p.of, *tenant)
		}
	}
}

func (p *places) inUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}
