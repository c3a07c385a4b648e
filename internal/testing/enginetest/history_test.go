package enginetest

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

func TestHistoriesAreTrueToAnEngine(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	for _, r := range Releases() {
		h, again := NewHistory(r, 1, 7), NewHistory(r, 1, 7)
		for _, x := range []*History{h, again} {
			if _, err := x.Go(2000); err != nil {
				t.Fatal(err)
			}
		}
		var total core.Outcome
		o := core.NewOracle()
		for i, b := range h.Batches {
			if !json.Valid(b.Line) || bytes.Count(b.Line, []byte("\n")) != 1 {
				t.Fatalf("%s: line %q", r.Name, b.Line)
			}
			if !bytes.Equal(b.Line, again.Batches[i].Line) {
				t.Fatalf("%s: batch %d differs the second time", r.Name, i)
			}
			for j := range b.Events {
				total.Add(Apply(o, 0, &b.Events[j]))
			}
		}
		if total.UnknownParent+total.UnknownBlock+total.Replaced > 0 {
			t.Errorf("%s: an engine would not say this: %+v", r.Name, total)
		}
		if total.Stored < 2000 || total.Removed < 1000 || total.Duplicate < 100 || total.Decremented < 100 {
			t.Errorf("%s: too little happens: %+v", r.Name, total)
		}
		for h2, n := range h.blocks {
			if !o.Knows(0, h2) || n.copies == [2]int{} {
				t.Fatalf("%s: the history holds %x, the oracle does not", r.Name, h2)
			}
		}
		if held := o.Held(0, 0); held < 300 {
			t.Errorf("%s: %d blocks are held in the end", r.Name, held)
		}
		x := core.NewRadix(core.Options{})
		h.Apply(x, 0)
		if err := Compare(x, o); err != nil {
			t.Errorf("%s: %v", r.Name, err)
		}
	}
}

func TestCompareSeesADifference(t *testing.T) {
	h := NewHistory(Releases()[3], 0, 1)
	if _, err := h.Go(300); err != nil {
		t.Fatal(err)
	}
	o, x := core.NewOracle(), core.NewRadix(core.Options{})
	h.Apply(o, 0)
	h.Batches = h.Batches[:299]
	h.Apply(x, 0)
	if Compare(x, o) == nil {
		t.Error("an index without the last batch passes")
	}
}
