package mocker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sync/atomic"
	"time"
)

// counters are written by the goroutine of Run and read by that of progress.
type counters struct {
	requests, refused, finished atomic.Int64
	lost, lostBlocks            atomic.Int64 // with engines that died
	promptTokens, reusedTokens  atomic.Int64
	events, stored, removed     atomic.Int64 // stored and removed in blocks
	virtual, behind             atomic.Int64 // ns
	idle                        atomic.Bool
}

// Progress is the state of a run, as one line of JSON; sums are since its start.
type Progress struct {
	Seconds        float64 `json:"seconds"`         // of the clock
	TraceSeconds   float64 `json:"trace_seconds"`   // of virtual time
	BehindSeconds  float64 `json:"behind_seconds"`  // virtual time is late by so much of the clock
	Requests       int64   `json:"requests"`        // accepted by an engine
	Lost           int64   `json:"lost,omitempty"`  // of those, with an engine that died: each is sent to another
	Refused        int64   `json:"refused"`         // too large for a cache, or too many waiting
	Finished       int64   `json:"finished"`        // answered
	PromptTokens   int64   `json:"prompt_tokens"`   // of accepted requests
	ReusedTokens   int64   `json:"reused_tokens"`   // of those, found in the engine's cache
	Reuse          float64 `json:"reuse"`           // the ratio
	Events         int64   `json:"events"`          // published
	StoredBlocks   int64   `json:"stored_blocks"`   // published
	RemovedBlocks  int64   `json:"removed_blocks"`  // published
	HeldBlocks     int64   `json:"held_blocks"`     // in all caches now
	PendingBytes   int64   `json:"pending_bytes"`   // of events, not yet acknowledged
	RequestsPerSec float64 `json:"requests_second"` // since the last line
	EventsPerSec   float64 `json:"events_second"`   // since the last line
	Idle           bool    `json:"idle,omitempty"`  // no more requests come, and all events are acknowledged
	Done           bool    `json:"done,omitempty"`  // the last line
}

// read returns the state now; before is the line before, for the rates.
func (c *counters) read(seconds float64, pending int64, before *Progress) Progress {
	p := Progress{
		Seconds:       seconds,
		TraceSeconds:  time.Duration(c.virtual.Load()).Seconds(),
		BehindSeconds: time.Duration(c.behind.Load()).Seconds(),
		Requests:      c.requests.Load(),
		Refused:       c.refused.Load(),
		Lost:          c.lost.Load(),
		Finished:      c.finished.Load(),
		PromptTokens:  c.promptTokens.Load(),
		ReusedTokens:  c.reusedTokens.Load(),
		Events:        c.events.Load(),
		RemovedBlocks: c.removed.Load(),
		PendingBytes:  pending,
		Idle:          c.idle.Load(),
	}
	gone := c.lostBlocks.Load()
	p.StoredBlocks = c.stored.Load() // after what is gone, so that the difference is not negative
	p.HeldBlocks = p.StoredBlocks - p.RemovedBlocks - gone
	if p.PromptTokens > 0 {
		p.Reuse = float64(p.ReusedTokens) / float64(p.PromptTokens)
	}
	if d := seconds - before.Seconds; d > 0 {
		p.RequestsPerSec = float64(p.Requests-before.Requests) / d
		p.EventsPerSec = float64(p.Events-before.Events) / d
	}
	return p
}

// text is the line for people, of at most 80 columns; tail is its end.
func (p *Progress) text(tail string) string {
	if p.Done {
		return fmt.Sprintf("%4.0fs  done: %d requests, %d refused, %.0f%% reused, %d events",
			p.Seconds, p.Requests, p.Refused, 100*p.Reuse, p.Events)
	}
	s := fmt.Sprintf("%4.0fs  %.0f requests/s, %.0f%% reused  %.0f events/s  %s", p.Seconds, p.RequestsPerSec, 100*p.Reuse, p.EventsPerSec, tail)
	if p.Idle {
		s += "\n\nAll requests are answered, and all events acknowledged. Until ctrl-c."
	}
	return s
}

// state says what the fleet holds, and what is not as it should be.
func (p *Progress) state() string {
	s := fmt.Sprintf("%d blocks, %d KiB unsent", p.HeldBlocks, p.PendingBytes>>10)
	if p.Refused > 0 {
		s += fmt.Sprintf(", %d refused", p.Refused)
	}
	if p.Lost > 0 {
		s += fmt.Sprintf(", %d lost and sent again", p.Lost)
	}
	if p.BehindSeconds >= 1 {
		s += fmt.Sprintf(", %.0fs late", p.BehindSeconds)
	}
	return s
}

// printer writes progress lines.
type printer struct {
	out   io.Writer
	json  bool
	tail  func() string // nil: what the fleet holds
	start time.Time
	last  Progress
	state func(seconds float64, before *Progress) Progress
}

// run prints a line a second until ctx ends.
func (p *printer) run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.print(false)
		}
	}
}

// print writes one line. What cannot be written is not worth ending for.
func (p *printer) print(done bool) {
	now := p.state(time.Since(p.start).Seconds(), &p.last)
	now.Done = done
	before := p.last
	p.last = now
	if p.json {
		for _, f := range []*float64{
			&now.Seconds, &now.TraceSeconds, &now.BehindSeconds, &now.Reuse, &now.RequestsPerSec, &now.EventsPerSec,
		} {
			*f = math.Round(*f*1000) / 1000
		}
		if line, err := json.Marshal(now); err == nil {
			_, _ = p.out.Write(append(line, '\n'))
		}
		return
	}
	if before.Idle && !done { // it has been said
		return
	}
	tail := now.state
	if p.tail != nil {
		tail = p.tail
	}
	_, _ = io.WriteString(p.out, now.text(tail())+"\n")
}
