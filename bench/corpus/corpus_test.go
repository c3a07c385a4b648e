package corpus

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"testing/iotest"

	"github.com/kvatlas/kvatlas/event"
)

// random is a corpus with every kind of operation.
func random(seed uint64, events int) *Corpus {
	r := rand.New(rand.NewPCG(seed, 1))
	hashes := func() []uint64 {
		out := make([]uint64, r.IntN(6))
		for i := range out {
			out[i] = r.Uint64()
		}
		return out
	}
	c := &Corpus{BlockSize: 16, Workers: 5, Trace: "random"}
	for i := range events {
		e := Event{Worker: r.Uint64N(c.Workers), Event: event.Event{ID: uint64(i), DPRank: r.Uint32N(2), Engine: hashes()}}
		switch r.IntN(8) {
		case 0:
			e.Kind, e.Engine, e.AllTiers = event.Cleared, nil, true
		case 1, 2, 3:
			e.Kind = event.Removed
		default:
			e.Kind, e.HasParent, e.Parent = event.Stored, r.IntN(2) == 0, r.Uint64()
			e.Local = make([]uint64, len(e.Engine))
			for j := range e.Local {
				e.Local[j] = r.Uint64()
			}
		}
		c.Events = append(c.Events, e)
	}
	for range events / 3 {
		c.Requests = append(c.Requests, hashes())
	}
	c.Totals = c.count()
	return c
}

func read(b []byte) (*Corpus, error) { return Read(bytes.NewReader(b), int64(len(b))) }

func TestReadGivesWhatWasWritten(t *testing.T) {
	for seed := range uint64(20) {
		want := random(seed, int(seed)*7)
		got, err := read(Encode(want))
		if err != nil {
			t.Fatal(err)
		}
		if len(want.Events) == 0 {
			want.Events, want.Requests = []Event{}, [][]uint64{}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: read\n%+v\nwant\n%+v", seed, got, want)
		}
	}
}

// TestReadRefuses: every truncation and every changed count is an error of the
// format, never a panic and never a wrong corpus.
func TestReadRefuses(t *testing.T) {
	good := Encode(random(1, 30))
	for n := range good {
		if _, err := read(good[:n]); !errors.Is(err, ErrFormat) {
			t.Fatalf("%d of %d bytes: %v", n, len(good), err)
		}
	}
	if _, err := read(append(bytes.Clone(good), 0)); !errors.Is(err, ErrFormat) {
		t.Errorf("a byte too many: %v", err)
	}
	for _, at := range []int{0, 8, 56, 64, 72, 104, 112} { // magic, version, totals, name length
		bad := bytes.Clone(good)
		bad[at] ^= 0x80
		if _, err := read(bad); !errors.Is(err, ErrFormat) {
			t.Errorf("byte %d changed: %v", at, err)
		}
	}
	broken := errors.New("broken disk")
	if _, err := Read(iotest.ErrReader(broken), int64(len(good))); !errors.Is(err, broken) {
		t.Errorf("a failing reader gives %v", err)
	}
}

func TestOpen(t *testing.T) {
	name := filepath.Join(t.TempDir(), "c.bin")
	want := random(3, 40)
	if err := os.WriteFile(name, Encode(want), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	if got.Totals != want.Totals {
		t.Errorf("totals %+v, want %+v", got.Totals, want.Totals)
	}
	if _, err := Open(name + ".absent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an absent file gives %v", err)
	}
}

// TestBatchesKeepOrder: whatever the grouping, each worker's events are all
// there, in order, in batches of its own no larger than asked, and none leaves
// its window.
func TestBatchesKeepOrder(t *testing.T) {
	c := random(5, 500)
	space := event.Space{Model: "m", BlockSize: 16}
	for _, size := range []int{1, 3, 32, 1000} {
		for _, window := range []int{1, 7, 64, 1000} {
			batches := c.Batches(space, size, window, true)
			got := map[uint64][]event.Event{}
			seen := 0
			for _, b := range batches {
				if len(b.Events) == 0 || len(b.Events) > size {
					t.Fatalf("size %d: a batch of %d", size, len(b.Events))
				}
				if b.Space != space || !b.CountCopies {
					t.Fatalf("a batch of space %v, copies counted %v", b.Space, b.CountCopies)
				}
				got[b.Worker] = append(got[b.Worker], b.Events...)
				for _, e := range b.Events { // random's ids are places in the corpus
					if int(e.ID)/window != seen/window {
						t.Fatalf("event %d left its window of %d", e.ID, window)
					}
				}
				seen += len(b.Events)
			}
			want := map[uint64][]event.Event{}
			for _, e := range c.Events {
				want[e.Worker] = append(want[e.Worker], e.Event)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("size %d, window %d: a worker's events changed", size, window)
			}
			if size == 1 || window == 1 {
				for i, b := range batches {
					if b.Events[0].ID != uint64(i) {
						t.Fatalf("size %d, window %d: order of the corpus changed", size, window)
					}
				}
			}
		}
	}
}

func TestWide(t *testing.T) {
	c := Wide(10, 3)
	if c.Totals.StoredBlocks != 30 || len(c.Requests) != 64 || len(c.Requests[0]) != 10 {
		t.Errorf("totals %+v", c.Totals)
	}
	if got, err := read(Encode(c)); err != nil || !reflect.DeepEqual(got.Events, c.Events) {
		t.Errorf("written and read: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(Encode(random(seed, 4)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := read(b)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("not an error of the format: %v", err)
			}
			return
		}
		again, err := read(Encode(c))
		if err != nil {
			t.Fatalf("written again: %v", err)
		}
		if !reflect.DeepEqual(again, c) {
			t.Fatal("written and read again, it differs")
		}
	})
}
