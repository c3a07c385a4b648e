package shard

import (
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

func benchSpace(i int) event.Space {
	return event.Space{Model: fmt.Sprintf("organisation/model-%d", i), BlockSize: 16}
}

// BenchmarkSetLookup is what each request does first, with 16 spaces open.
func BenchmarkSetLookup(b *testing.B) {
	s := New(Config{})
	defer s.Close()
	var keys []event.Space
	for i := range 16 {
		if _, err := s.Open(benchSpace(i)); err != nil {
			b.Fatal(err)
		}
		keys = append(keys, benchSpace(i))
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if s.Lookup(keys[i%16]) == nil {
				b.Error("a space is gone")
			}
		}
	})
}

// BenchmarkSetOpen opens 1,024 spaces.
func BenchmarkSetOpen(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		s := New(Config{NewIndex: func() core.Index { return core.NewOracle() }})
		for i := range 1024 {
			if _, err := s.Open(benchSpace(i)); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		s.Close()
		b.StartTimer()
	}
}
