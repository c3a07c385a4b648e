package console

import (
	"log/slog"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/replica"
	"github.com/kvatlas/kvatlas/route"
)

// BenchmarkFrame is one second's work for all readers of one view: a look at 10,000 workers
// that are registered, hold blocks and are routed, and the frame of it. Nothing of it goes
// by how many blocks they hold.
func BenchmarkFrame(b *testing.B) {
	log := slog.New(slog.DiscardHandler)
	var workers []registry.Worker
	for i := range uint64(10_000) {
		workers = append(workers, registry.Worker{ID: i + 1, Model: "m", BlockSize: 4, Transport: registry.NoEvents, TotalBlocks: 1000, Endpoints: registry.Endpoints{HTTP: "http://127.0.0.1:1"}})
	}
	r, err := replica.New(replica.Config{Fed: true, Static: workers, Log: log, Replica: "test"})
	if err != nil {
		b.Fatal(err)
	}
	if err := r.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	models := fleet.New(fleet.Config{Route: route.DefaultSettings(), Index: fleet.Events, Set: r.Set(), Log: log})
	sp := event.Space{Model: "m", BlockSize: 4}
	x, err := r.Set().Open(sp)
	if err != nil {
		b.Fatal(err)
	}
	for i := range workers {
		if err := models.SetWorker(workers[i], false); err != nil {
			b.Fatal(err)
		}
		local := []uint64{1, 2, uint64(i)}
		batch := &event.Batch{Space: sp, Worker: workers[i].ID, Events: []event.Event{{Kind: event.Stored, Local: local, Engine: engineHashes(uint64(i), local)}}}
		if _, err := x.ApplyWait(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	s := newSampler(&Config{Replica: r, Models: models.Models})
	defer s.close()
	var v maker
	now, readers := time.Now(), [numMetrics]int{held: 10}
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(frameEvery)
		s.look(now)
		v.make(s, nil, &readers)
	}
}
