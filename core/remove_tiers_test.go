package core

import (
	"testing"

	"github.com/kvatlas/kvatlas/event"
)

// TestTheLastCopyInAHoleEndsTheTiers: where only copies beyond the first were not ordinary any
// more, a hole in the middle that takes them ends what the run kept for lower tiers.
func TestTheLastCopyInAHoleEndsTheTiers(t *testing.T) {
	x := NewRadix(Options{})
	hashes := []uint64{11, 12, 13, 14, 15, 16, 17, 18}
	store := func(tier event.Tier, hashes, local []uint64) {
		ev := &event.Event{Kind: event.Stored, Tier: tier, Engine: hashes, Local: local}
		if hashes[0] > 11 {
			ev.HasParent, ev.Parent = true, hashes[0]-1
		}
		x.Store(0, ev, true)
	}
	store(event.Device, hashes, hashes)
	store(event.Device, hashes[3:4], hashes[3:4])
	store(event.HostPinned, hashes[5:6], hashes[5:6])
	r := x.root.body.Load().children.Load().only()
	if r.body.Load().tiers.Load() == nil || r.exceptions[0].layers[0].copies.m == nil {
		t.Fatal("no tiers, or no copies, to begin with")
	}
	x.Remove(0, &event.Event{Kind: event.Removed, Tier: event.HostPinned, Engine: hashes[5:6]}, false)
	x.Remove(0, &event.Event{Kind: event.Removed, Tier: event.Device, Engine: hashes[3:4]}, false)
	if ex := r.exceptions[0]; !ex.simple() {
		t.Fatalf("an exception that is more than holes: %+v", ex)
	}
	if r.body.Load().tiers.Load() != nil {
		t.Error("the run still has coverage of tiers on which nobody has a block")
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
}
