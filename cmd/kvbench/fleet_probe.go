package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// fleetProbe is a chain that was found in kvindexer: how long after Publish was
// called for its first event, and when, in ns.
type fleetProbe struct{ Took, At int64 }

// fleetProber looks for chains until it finds them. Each is looked for on its own,
// however long others take: nothing is left out while the index stands still.
type fleetProber struct {
	url   string
	found func([]fleetProbe)
	done  chan struct{} // closed: nothing is looked for any more
	more  chan struct{} // holds a token when there are new ones

	mu sync.Mutex
	in []pendingProbe // new ones, taken by run
}

type pendingProbe struct {
	begun, next time.Time
	body        []byte
	found       []byte // what the answer has once it is there
}

// The first look for a chain, and how much later than the one before each next one
// is: that many ms, or that part of the age, whichever is more.
const (
	probeStep = 2 * time.Millisecond
	probePart = 12
)

func newFleetProber(indexer string, found func([]fleetProbe)) *fleetProber {
	return &fleetProber{url: indexer + "/v1/find_matches", found: found, done: make(chan struct{}), more: make(chan struct{}, 1)}
}

// add has the chain looked for; it is copied.
func (p *fleetProber) add(begun time.Time, chain []uint64) {
	select {
	case <-p.done:
		return
	default:
	}
	one := pendingProbe{begun: begun, next: begun.Add(probeStep), found: fmt.Appendf(nil, `"longest":%d,`, len(chain))}
	one.body = fmt.Appendf(nil, `{"model":%q,"hashes":[%d`, fleetSpace.Model, chain[0])
	for _, h := range chain[1:] {
		one.body = strconv.AppendUint(append(one.body, ','), h, 10)
	}
	one.body = append(one.body, "]}"...)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.in = append(p.in, one)
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// run looks until ctx ends, and tells what it found each half second.
func (p *fleetProber) run(ctx context.Context) {
	const tell = 500 * time.Millisecond
	var pending []pendingProbe
	var found []fleetProbe
	told := time.Now()
	timer := time.NewTimer(tell)
	defer timer.Stop()
	for {
		select {
		case <-p.more:
		case <-timer.C:
		case <-p.done:
			return
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		pending = append(pending, p.in...)
		p.in = p.in[:0]
		p.mu.Unlock()
		pending = slices.DeleteFunc(pending, func(one pendingProbe) bool {
			if time.Now().Before(one.next) || !p.look(ctx, &one) {
				return false
			}
			now := time.Now()
			found = append(found, fleetProbe{now.Sub(one.begun).Nanoseconds(), now.UnixNano()})
			return true
		})
		now := time.Now()
		if now.Sub(told) > tell {
			told = now
			p.found(found)
			found = nil
		}
		next := told.Add(tell)
		for i := range pending {
			one := &pending[i]
			if !now.Before(one.next) {
				one.next = now.Add(max(probeStep, now.Sub(one.begun)/probePart))
			}
			if one.next.Before(next) {
				next = one.next
			}
		}
		timer.Reset(time.Until(next))
	}
}

// look reports whether some worker holds all of the chain.
func (p *fleetProber) look(ctx context.Context, one *pendingProbe) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(one.body))
	if err != nil {
		return false
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return false // it is away: later
	}
	defer answer.Body.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(answer.Body)
	return err == nil && answer.StatusCode == http.StatusOK && bytes.Contains(data, one.found)
}
