package mock

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// The timing gives the isolated times that it was fitted to.
func TestTimingOfIsolatedRequests(t *testing.T) {
	for _, f := range []struct {
		input       int
		first, each float64 // ms
		slack       float64
	}{{512, 24.4, 5.8, 0.02}, {2048, 49.4, 5.85, 0.02}, {8192, 169, 6.15, 0.02}, {32768, 677, 7.4, 0.02}, {131072, 2706, 12.1, 0.02}} {
		e, err := New(Config{Blocks: 16384}, func(*event.Event) {})
		if err != nil {
			t.Fatal(err)
		}
		timing := DefaultTiming()
		fleet := NewFleet([]*Engine{e}, func(_ int, r *Report) time.Duration { return timing.Step(r) })
		const output = 101
		if err := fleet.Admit(time.Second, 0, &Request{Input: f.input, Output: output, Local: make([]uint64, f.input/16)}); err != nil {
			t.Fatal(err)
		}
		var first, last time.Duration
		for {
			at, ok := fleet.Next()
			if !ok {
				break
			}
			_, start, end, r := fleet.Step()
			if start != at {
				t.Fatalf("a step announced for %v starts at %v", at, start)
			}
			if len(r.First) > 0 {
				first = end
			}
			last = end
		}
		ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
		if got := ms(first - time.Second); math.Abs(got/f.first-1) > f.slack {
			t.Errorf("%d tokens: first token after %.1f ms, want %.1f", f.input, got, f.first)
		}
		if got := ms(last-first) / (output - 1); math.Abs(got/f.each-1) > f.slack {
			t.Errorf("%d tokens: %.2f ms a token, want %.2f", f.input, got, f.each)
		}
	}
}

// Steps come in the order of time, an engine's never overlap, and every
// request ends.
func TestFleetKeepsTime(t *testing.T) {
	const engines = 5
	var all []*Engine
	for range engines {
		e, err := New(Config{BlockSize: 4, Blocks: 64, MaxBatched: 32}, func(*event.Event) {})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	timing := DefaultTiming()
	fleet := NewFleet(all, func(i int, r *Report) time.Duration { return timing.Step(r) * time.Duration(i+1) })
	var busy [engines]time.Duration
	var last time.Duration
	ended, sent := 0, 0
	for now := time.Duration(0); ; {
		at, ok := fleet.Next()
		if sent < 200 && (!ok || now <= at) {
			r := Request{ID: uint64(sent), Input: 4 * (1 + sent%17), Output: sent % 9, Local: make([]uint64, 1+sent%17)}
			if err := fleet.Admit(now, sent*7%engines, &r); err != nil {
				t.Fatal(err)
			}
			sent++
			now += time.Duration(sent%13) * 10 * time.Millisecond
			continue
		}
		if !ok {
			break
		}
		i, start, end, r := fleet.Step()
		if start < last || start < busy[i] || end <= start {
			t.Fatalf("engine %d steps from %v to %v, after %v and %v", i, start, end, last, busy[i])
		}
		last, busy[i] = start, end
		ended += len(r.Finished)
	}
	if ended != 200 {
		t.Fatalf("%d of 200 requests ended", ended)
	}
}

// An engine that is replaced loses its requests, whole; they can be sent elsewhere, and
// to its successor, which holds nothing.
func TestFleetReplaces(t *testing.T) {
	engine := func() *Engine {
		e, err := New(Config{BlockSize: 4, Blocks: 64, MaxBatched: 8, MaxRunning: 2}, func(*event.Event) {})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	fleet := NewFleet([]*Engine{engine(), engine()}, func(int, *Report) time.Duration { return time.Second })
	var sent []Request
	for id := range uint64(4) { // two run, two wait
		r := Request{ID: id, Input: 9, Output: 8, Local: []uint64{id, 7, 8, 9}}
		sent = append(sent, r)
		if err := fleet.Admit(0, 0, &r); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		fleet.Step()
	}
	if blocks, lost := fleet.Replace(0, engine()); blocks != 4 || !reflect.DeepEqual(lost, sent) {
		t.Fatalf("lost are %d blocks and %v, want %v", blocks, lost, sent)
	}
	if _, busy := fleet.Next(); busy {
		t.Fatal("the one that is gone has a step to do")
	}
	for i := range sent {
		if err := fleet.Admit(time.Second, i%2, &sent[i]); err != nil {
			t.Fatal(err)
		}
	}
	ended := 0
	for {
		if _, busy := fleet.Next(); !busy {
			break
		}
		_, start, _, r := fleet.Step()
		if start < time.Second || ended == 0 && r.Reused != 0 {
			t.Fatalf("a step at %v finds %d tokens", start, r.Reused)
		}
		ended += len(r.Finished)
	}
	if _, lost := fleet.Replace(1, engine()); ended != 4 || len(lost) != 0 {
		t.Fatalf("%d ended, and lost are %v", ended, lost)
	}
}
