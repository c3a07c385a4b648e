package ingest

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
)

// A space whose streams are made again, and are more or fewer then, is not known to who read
// one of the former: neither the part that goes on, nor the rest for good.
func TestASpaceThatIsDividedAnew(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	deleteAll := func() {
		infos, err := stream.List(deadline(t), n.js, "default")
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range infos {
			if err := n.js.DeleteStream(deadline(t), info.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	published := func(partitions int, worker uint64) {
		p, e := n.worker(worker, func(c *publish.Config) { c.Stream.Partitions = partitions })
		n.run(p, e, 100)
		if err := p.Flush(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	worker := func(share stream.Share) (w uint64) {
		for !share.Has(w) {
			w++
		}
		return w
	}
	published(4, worker(stream.Share{Index: 0, Of: 4}))
	published(4, worker(stream.Share{Index: 3, Of: 4}))
	var shares []*Ingest
	for _, i := range []int{0, 3} {
		set, _ := newIndex(t, 2)
		r := &replica{set: set, metrics: metrics.NewSet(), asked: &asked{}}
		cfg := n.config("share"+string(rune('0'+i)), r, nil)
		cfg.Share, cfg.ForgetStream = stream.Share{Index: i, Of: 4}, 100*time.Millisecond
		in, err := Open(deadline(t), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(in.Close)
		r.Ingest = in
		shares = append(shares, in)
	}
	ready := func() {
		t.Helper()
		for _, in := range shares {
			waittest.Until(t, in.Ready)
		}
	}
	ready()
	ofBefore := func(s RankStatus) bool { return s.Stale && errors.Is(s.Why, ErrDivided) }
	deleteAll()
	published(2, worker(stream.Share{Index: 0, Of: 2}))
	for i, in := range shares {
		waittest.For(t, "it says that the space is another", func() bool {
			err := in.Ready()
			return err != nil && strings.Contains(err.Error(), "2 streams") && len(in.Refused()) > 0
		})
		if ranks := in.Ranks(); len(ranks) == 0 || slices.ContainsFunc(ranks, func(s RankStatus) bool { return !ofBefore(s) }) {
			t.Errorf("share %d: what it knows is of before, and its ranks are %+v", i, ranks)
		}
		if got := in.m.voidedPosition.Get(); got > 0 {
			t.Errorf("share %d: publishers of streams that are not read here are asked", i)
		}
	}
	deleteAll()
	published(4, worker(stream.Share{Index: 0, Of: 4}))
	published(4, worker(stream.Share{Index: 3, Of: 4}))
	ready()
	for _, in := range shares {
		waittest.For(t, "nothing is of before any more", func() bool { return !slices.ContainsFunc(in.Ranks(), ofBefore) })
	}
}
