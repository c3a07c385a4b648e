package publish

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/kvatlas/kvatlas/event"
)

// Blocks that were stored by name alone are said again where their content
// becomes known: replicas may not have known it. Where copies are counted they
// are not, as replicas that knew it would count them twice.
func TestNamesAreSaidAgainOnceTheirContentIsKnown(t *testing.T) {
	for _, counts := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeStream(1, 0)
			cfg := testConfig(t, func(c *Config) { c.CountCopies, c.UnknownNames = counts, 2 })
			p := start(cfg, f)
			say := func(tier event.Tier, engine, local []uint64) {
				if err := p.Stored(t.Context(), 3, tier, Root(), engine, local); err != nil {
					t.Fatal(err)
				}
			}
			say(event.HostPinned, []uint64{5, 6, 7}, nil) // 7 finds no room
			say(event.Disk, []uint64{6}, nil)
			say(event.Device, []uint64{4, 5, 6}, []uint64{1, 2, 3})
			say(event.Device, []uint64{4, 5, 6}, []uint64{1, 2, 3})
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			var got []event.Event
			for _, b := range decoded(t, f.mu.stored) {
				got = append(got, b.Events...)
			}
			want := []event.Event{
				{Tier: event.HostPinned, Engine: []uint64{5, 6, 7}}, {Tier: event.Disk, Engine: []uint64{6}},
				{Engine: []uint64{4, 5, 6}, Local: []uint64{1, 2, 3}},
				{Tier: event.HostPinned, Engine: []uint64{5, 6}}, {Tier: event.Disk, Engine: []uint64{6}},
				{Engine: []uint64{4, 5, 6}, Local: []uint64{1, 2, 3}},
			}
			if counts {
				want = append(want[:3], want[5])
			}
			if len(got) != len(want) {
				t.Fatalf("%d events, want %d: %+v", len(got), len(want), got)
			}
			for i, ev := range got {
				w := want[i]
				if ev.ID != uint64(i+1) || ev.DPRank != 3 || ev.Tier != w.Tier || !slices.Equal(ev.Engine, w.Engine) || !slices.Equal(ev.Local, w.Local) {
					t.Errorf("event %d: %+v, want %+v", i, ev, w)
				}
			}
			if n := counter(cfg, "kvatlas_publish_names_left_out_total"); n != 1 {
				t.Errorf("%d names left out", n)
			}
		})
	}
}
