package replica

import (
	"context"
	"io"
	"strconv"
	"sync"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/pools"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// poolKey names a pool of a space.
type poolKey struct {
	space event.Space
	name  string
}

// poolStreams follows the streams that pools have of their own. Its methods but write belong to
// the workers' goroutine.
type poolStreams struct {
	r       *Replica
	changed bool // who names a stream

	mu      sync.Mutex
	follows map[poolKey]*poolStream
}

type poolStream struct {
	source   *event.PoolSource
	follower *pools.Follower
	stop     func() // and waits
}

func newPoolStreams(r *Replica) *poolStreams {
	p := &poolStreams{r: r, follows: make(map[poolKey]*poolStream)}
	if r.metrics != nil {
		r.metrics.RegisterMetricsWriter(p.write)
	}
	return p
}

// heed notes that a worker names these pools now, or none any more.
func (p *poolStreams) heed(list []event.Pool) {
	if p == nil {
		return
	}
	p.changed = p.changed || len(p.follows) > 0
	for i := range list {
		p.changed = p.changed || list[i].Source != nil
	}
}

// sourced returns the streams that this replica's workers name: of several of one pool that of the lowest id.
func (w *workers) sourced() map[poolKey]*event.PoolSource {
	want := make(map[poolKey]*event.PoolSource)
	for _, e := range w.reg.Snapshot(false) {
		if !w.r.share.Has(e.Key.Worker) {
			continue
		}
		for i := range e.Pools {
			k := poolKey{e.Key.Space, e.Pools[i].Name}
			if s := e.Pools[i].Source; s != nil && want[k] == nil {
				want[k] = s
			}
		}
	}
	return want
}

// follow follows these streams, and no others.
func (p *poolStreams) follow(want map[poolKey]*event.PoolSource) {
	p.changed = false
	for k, f := range p.follows {
		if !f.source.Equal(want[k]) {
			f.stop()
			p.put(k, nil)
		}
	}
	for k, s := range want {
		sp := p.r.set.Lookup(k.space)
		if p.follows[k] != nil || sp == nil {
			continue
		}
		f := pools.New(pools.Config{MaxBlocks: p.r.cfg.PoolBlocks, Log: p.r.log}, k.name, s, sp)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); f.Run(ctx) }()
		p.put(k, &poolStream{source: s, follower: f, stop: func() { cancel(); <-done }})
	}
}

func (p *poolStreams) put(k poolKey, f *poolStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f == nil {
		delete(p.follows, k)
	} else {
		p.follows[k] = f
	}
}

// close ends what follow began.
func (p *poolStreams) close() { p.follow(nil) }

const (
	familyReadable = "kvatlas_pool_stream_readable"
	familyUnplaced = "kvatlas_pool_stream_unplaced_blocks"
	familyLists    = "kvatlas_pool_stream_lists_total"
	familyGaps     = "kvatlas_pool_stream_gaps_total"
	familyLeft     = "kvatlas_pool_stream_left_out_total"
)

func poolHelp(m *obs.Metrics) {
	m.Help(familyReadable, "1 while it is known what a pool with a stream of its own has, by model and pool; else lookups find nothing there.")
	m.Help(familyUnplaced, "Blocks of such a pool of which no worker has told where they stand in prompts.")
	m.Help(familyLists, "Lists of all keys of such a pool's store that were read.")
	m.Help(familyGaps, "Messages of such a pool's stream, or runs of them, that were missing or could not be read.")
	m.Help(familyLeft, "Objects of such a pool's store that were left out, by reason: foreign (of another prefix, tenant or cache group, or no block's), parts "+
		"(beyond 64), room (too many blocks), and events that say nothing of an object (events).")
}

// write writes the metrics of all streams.
func (p *poolStreams) write(w io.Writer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, family := range []struct {
		name, kind string
		of         func(pools.Status) map[string]int
	}{
		{familyReadable, "gauge", func(s pools.Status) map[string]int { return map[string]int{"": map[bool]int{true: 1}[s.Readable]} }},
		{familyUnplaced, "gauge", func(s pools.Status) map[string]int { return map[string]int{"": s.Unplaced} }},
		{familyLists, "counter", func(s pools.Status) map[string]int { return map[string]int{"": int(s.Lists)} }},
		{familyGaps, "counter", func(s pools.Status) map[string]int { return map[string]int{"": int(s.Gaps)} }},
		{familyLeft, "counter", func(s pools.Status) map[string]int {
			return map[string]int{"foreign": int(s.Left.Foreign), "parts": int(s.Left.Parts), "room": int(s.Left.Room), "events": int(s.Left.Events)}
		}},
	} {
		metrics.WriteMetadataIfNeeded(w, family.name, family.kind)
		for k, f := range p.follows {
			for reason, n := range family.of(f.follower.Status()) {
				labels := []string{"model", k.space.Model, "block_size", strconv.Itoa(int(k.space.BlockSize)), "group", k.space.Group, "pool", k.name}
				if reason != "" {
					labels = append(labels, "reason", reason)
				}
				writeGauge(w, family.name, n, labels...)
			}
		}
	}
}
