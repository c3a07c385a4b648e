package ingest

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
)

// dumpsAsked counts the dumps that publishers are asked for, by subject and rank.
type dumpsAsked struct {
	mu sync.Mutex
	n  map[string]int
}

func watchDumps(t *testing.T, nc *nats.Conn) *dumpsAsked {
	t.Helper()
	d := &dumpsAsked{n: map[string]int{}}
	_, err := nc.Subscribe(strings.TrimSuffix(stream.LiveSubjects("default"), "live")+"recover", func(m *nats.Msg) {
		if r := m.Data; len(r) == 37 && binary.LittleEndian.Uint64(r[9:]) == 0 && binary.LittleEndian.Uint64(r[25:]) == 0 { // no events, no further part
			d.mu.Lock()
			d.n[fmt.Sprint(m.Subject, " rank ", binary.LittleEndian.Uint32(r[5:]))]++
			d.mu.Unlock()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *dumpsAsked) take() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.n
	d.n = map[string]int{}
	return n
}

// remade is a fleet whose streams are deleted while its publishers live, and the replicas
// that read a share each.
type remade struct {
	*natsBench
	dumps    *dumpsAsked
	pubs     []*publish.Publisher
	engines  []*engine
	replicas []*replica
	starts   []map[string]Start
}

func newRemade(t *testing.T, shares int) *remade {
	t.Helper()
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	b := &remade{natsBench: n, dumps: watchDumps(t, n.nc), replicas: make([]*replica, shares), starts: make([]map[string]Start, shares)}
	for id := range uint64(4) {
		p, e := n.worker(id, func(c *publish.Config) { c.Stream.Partitions = shares })
		b.pubs, b.engines = append(b.pubs, p), append(b.engines, e)
	}
	return b
}

func (b *remade) publish(steps int) {
	b.t.Helper()
	for i, p := range b.pubs {
		b.run(p, b.engines[i], steps)
	}
	for _, p := range b.pubs {
		if err := p.Flush(deadline(b.t)); err != nil {
			b.t.Fatal(err)
		}
	}
}

// open has the replicas begin where they were.
func (b *remade) open() {
	b.t.Helper()
	for i, old := range b.replicas {
		r := &replica{metrics: metrics.NewSet(), asked: &asked{}}
		if r.set, _ = newIndex(b.t, 2); old != nil {
			r.set = old.set
		}
		cfg := b.config(fmt.Sprint("share", i), r, b.starts[i])
		cfg.Share = stream.Share{Index: i, Of: len(b.replicas)}
		cfg.FindSnapshot = func(_ context.Context, at Trimmed) (Snapshot, error) { // a keeper has those of before
			if start, ok := b.starts[i][at.Stream]; ok {
				return beyond{start}, nil
			}
			return nil, nil
		}
		in, err := Open(deadline(b.t), cfg)
		if err != nil {
			b.t.Fatal(err)
		}
		b.t.Cleanup(in.Close)
		r.Ingest, b.replicas[i] = in, r
	}
}

func (b *remade) close() {
	for i, r := range b.replicas {
		r.Close()
		b.starts[i] = r.Positions()
	}
}

// settled waits until every rank is followed up to its publisher's last event.
func (b *remade) settled() {
	b.t.Helper()
	for _, r := range b.replicas {
		waittest.Until(b.t, r.Ready)
	}
	waittest.Until(b.t, func() error {
		ranks := 0
		for _, r := range b.replicas {
			for _, k := range r.Ranks() {
				if ranks++; !k.Is(follow.Following) || k.Incomplete || k.LastID < b.last(k.Worker, k.DPRank) {
					return fmt.Errorf("%+v", k)
				}
			}
		}
		if ranks != 2*len(b.engines) {
			return fmt.Errorf("%d ranks are followed", ranks)
		}
		return nil
	})
}

// last returns the rank's last event.
func (b *remade) last(worker uint64, dpRank uint32) uint64 {
	for _, pos := range b.pubs[worker].Positions() {
		if pos.DPRank == dpRank {
			return pos.ID
		}
	}
	return 0
}

func (b *remade) deleteStreams() {
	b.t.Helper()
	infos, err := stream.List(deadline(b.t), b.js, "default")
	if err != nil || len(infos) != len(b.replicas) {
		b.t.Fatalf("%d streams, %v", len(infos), err)
	}
	for _, info := range infos {
		if err := b.js.DeleteStream(deadline(b.t), info.Name); err != nil {
			b.t.Fatal(err)
		}
	}
}

// once verifies that each replica found its position void once, and that of each rank a
// dump was wanted once: one that clears all before it is asked needs none any more.
func (b *remade) once() {
	b.t.Helper()
	b.settled()
	b.publish(20) // nothing asks again, no heartbeat either
	for _, r := range b.replicas {
		waittest.For(b.t, "heartbeats are read", func() bool {
			read, _, _, _ := r.Progress()
			return read > 100
		})
	}
	b.settled()
	for i, r := range b.replicas {
		if got := r.counter("kvatlas_ingest_void_positions_total"); got != 1 {
			b.t.Errorf("share %d: the position was void %d times", i, got)
		}
		r.asked.mu.Lock()
		if ranks := len(r.Ranks()); len(r.asked.counts) != ranks {
			b.t.Errorf("share %d: %d ranks of %d were wanted", i, len(r.asked.counts), ranks)
		}
		for id, causes := range r.asked.counts {
			if len(causes) != 1 || causes[Void] != 1 {
				b.t.Errorf("share %d: worker %d, rank %d is wanted for %v", i, id.Worker, id.DPRank, causes)
			}
		}
		r.asked.mu.Unlock()
	}
	n := b.dumps.take()
	for who, times := range n {
		if times != 1 {
			b.t.Errorf("%s was asked for a dump %d times", who, times)
		}
	}
	if len(b.replicas) == 1 && digest(b.t, b.replicas[0].set) != b.truth.digest() {
		b.t.Error("the index is not the oracle's")
	}
}

// A stream that was deleted and made again voids a position once, whoever notices it first,
// and each rank's publisher is asked for a dump once: while it is read, and at a start with
// the position of before and a snapshot of before at hand; in each share of a space.
func TestAStreamMadeAgainIsVoidOnce(t *testing.T) {
	for _, shares := range []int{2, 1}[:racetest.Few(2)] {
		for _, steps := range []int{5, 400} { // the new stream is shorter than the position, or longer
			for _, away := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d shares, %d steps, away %v", shares, steps, away), func(t *testing.T) {
					b := newRemade(t, shares)
					b.open()
					b.publish(150)
					b.settled()
					if away {
						b.close()
					}
					b.dumps.take()
					b.deleteStreams()
					b.publish(steps)
					if away {
						b.open()
					}
					b.once()
				})
			}
		}
	}
}
