package fleet

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
)

func benchFleet(b *testing.B, workers int) *Fleet {
	f := New(Config{ID: 1, Route: route.DefaultSettings(), Log: slog.New(slog.DiscardHandler)})
	for i := range workers {
		w := registry.Worker{Model: "m", BlockSize: 16, ID: uint64(i), Lora: fmt.Sprintf("adapter-%d", i%100), Endpoints: registry.Endpoints{HTTP: fmt.Sprintf("http://10.0.%d.%d:8000", i/256, i%256)}}
		if err := f.SetWorker(w, false); err != nil {
			b.Fatal(err)
		}
	}
	return f
}

// BenchmarkEngine is what each request asks of its model once a worker is chosen.
func BenchmarkEngine(b *testing.B) {
	f := benchFleet(b, 1024)
	m, err := f.Open(event.Space{Model: "m", BlockSize: 16})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := uint64(0); pb.Next(); i++ {
			if m.Engine(i%1024) == nil {
				b.Error("an engine is gone")
			}
		}
	})
}

// BenchmarkSetWorkers registers 1,024 workers of one model, one after the other.
func BenchmarkSetWorkers(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = benchFleet(b, 1024).Close()
	}
}
