package sidecar

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
)

// notepad is a store that keeps nothing, and a sink that notes what it is told.
type notepad struct {
	lacking bool
	said    []bool // of each event, whether the stream lacked something
}

func (n *notepad) load() ([]byte, error) { return nil, nil }
func (n *notepad) save([]byte) error     { return nil }
func (n *notepad) remove() error         { return nil }

func (n *notepad) Publish(context.Context, event.Event) error {
	n.said = append(n.said, n.lacking)
	return nil
}
func (n *notepad) Flush(context.Context) error   { return nil }
func (n *notepad) Close(context.Context) error   { return nil }
func (n *notepad) last() uint64                  { return 0 }
func (n *notepad) setIncomplete(incomplete bool) { n.lacking = incomplete }

// An event that cannot be read, of a batch that otherwise can, makes the stream
// incomplete wherever in the batch it was: until the next batch that clears all.
func TestAnUnreadableEventMakesTheStreamIncomplete(t *testing.T) {
	out := new(notepad)
	s, err := newStream(streamConfig{
		store: out, open: func(context.Context, opening) (sink, error) { return out, nil }, position: func() []byte { return nil },
		every: time.Hour, retry: time.Hour, log: slog.New(slog.DiscardHandler), m: newStreamMeters(metrics.NewSet(), 0),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	store := event.Event{Kind: event.Stored, Engine: []uint64{1}, Local: []uint64{1}}
	clearAll := event.Event{Kind: event.Cleared, AllTiers: true}
	in := zmqfeed.NewFollower(s)
	in.Anew()
	for i, b := range []event.Batch{
		{Events: []event.Event{store}},
		{Events: []event.Event{clearAll, store}, Lost: 1},
		{Events: []event.Event{clearAll}},
	} {
		in.Sent(uint64(i), &line{b: b})
		if s.incomplete != (i == 1) || s.shownIncomplete.Load() != s.incomplete {
			t.Errorf("after batch %d the stream is incomplete: %v", i, s.incomplete)
		}
	}
	// The beginning, which clears, and the batches.
	if want := []bool{false, false, true, true, false}; !slices.Equal(out.said, want) {
		t.Errorf("events say that something is missing: %v, want %v", out.said, want)
	}
}

// What the engine gives as all that it holds begins the stream anew: it is complete once the
// engine's own stream has come to it; where blocks are given by their hashes alone, or something
// could not be read, it lacks that.
func TestASnapshotBeginsTheStreamAnew(t *testing.T) {
	for _, lacks := range []bool{false, true} {
		out := new(notepad)
		s, err := newStream(streamConfig{
			store: out, open: func(_ context.Context, o opening) (sink, error) { out.lacking = o.incomplete; return out, nil }, position: func() []byte { return nil },
			every: time.Hour, retry: time.Millisecond, log: slog.New(slog.DiscardHandler), m: newStreamMeters(metrics.NewSet(), 0),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Batch(0, &event.Batch{Events: []event.Event{{Kind: event.Stored, Engine: []uint64{9}, Local: []uint64{9}}}})
		before := s.incarnation
		held := event.Event{Kind: event.Stored, Engine: []uint64{1}, Local: []uint64{1}, Incomplete: lacks}
		out.said = nil
		unplaced, _ := s.Snapshot(7, slices.Values([]*event.Batch{{Events: []event.Event{held}}}))
		// The beginning, which clears, and the block.
		if want := []bool{true, true}; unplaced != lacks || !s.incomplete || s.incarnation == before || !slices.Equal(out.said, want) {
			t.Errorf("lacks %v: unplaced %v, incomplete %v, said %v", lacks, unplaced, s.incomplete, out.said)
		}
		s.Batch(8, &event.Batch{Events: []event.Event{held}})
		s.State(zmqfeed.State{Phase: zmqfeed.CatchingUp})
		if !s.incomplete {
			t.Error("it counts as complete before the engine's stream has come to the snapshot")
		}
		if s.State(zmqfeed.State{Phase: zmqfeed.Live}); s.incomplete != lacks || out.lacking != lacks {
			t.Errorf("lacks %v: incomplete %v once it has", lacks, s.incomplete)
		}
	}
}

// An engine is gone while it cannot be reached, which whoever stops then says of its worker; not before that is known, nor
// while what came of it meanwhile is read, which may take long.
func TestAnEngineThatIsCaughtUpWithIsThere(t *testing.T) {
	s, err := newStream(streamConfig{store: new(notepad), log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		is   zmqfeed.State
		gone bool
	}{
		{zmqfeed.State{Phase: zmqfeed.Connecting}, false},
		{zmqfeed.State{Phase: zmqfeed.Connecting, Err: errors.New("refused")}, true},
		{zmqfeed.State{Phase: zmqfeed.CatchingUp}, false},
		{zmqfeed.State{Phase: zmqfeed.Connecting, Err: errors.New("refused")}, true},
		{zmqfeed.State{Phase: zmqfeed.CatchingUp}, false},
		{zmqfeed.State{Phase: zmqfeed.Live}, false},
	} {
		if s.State(c.is); s.gone() != c.gone {
			t.Errorf("%d: in %v it is gone: %v", i, c.is, !c.gone)
		}
	}
}

// While a stream cannot publish, whoever asks is told why, and the log says it once.
func TestAStreamThatCannotPublishSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, said, tries := new(notepad), new(strings.Builder), 0
		s, err := newStream(streamConfig{
			store: out, position: func() []byte { return nil }, every: time.Hour, retry: time.Second,
			log: slog.New(slog.NewTextHandler(said, nil)), m: newStreamMeters(metrics.NewSet(), 0),
			open: func(context.Context, opening) (sink, error) {
				if tries++; tries < 4 {
					return nil, errors.New("no room")
				}
				return out, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		sidecar := &Sidecar{streams: []*stream{s}, socket: new(socket)}
		sidecar.up.Store(true)
		ended := make(chan error)
		go func() { ended <- s.run(t.Context()) }()
		synctest.Wait()
		if waits := sidecar.seen()[0].Waits; waits != "no room" {
			t.Errorf("announced is %q", waits)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if waits := sidecar.seen()[0].Waits; waits != "" || tries != 4 {
			t.Errorf("after %d tries it still announces %q", tries, waits)
		}
		if n := strings.Count(said.String(), "no room"); n != 1 {
			t.Errorf("the log says it %d times:\n%s", n, said)
		}
	})
}

// Where the engine's blocks are of another size than was set, the log says so once, with
// both sizes and the setting, and whoever asks is told until blocks of the size come.
func TestBlocksOfAnotherSizeAreSaidPlainly(t *testing.T) {
	out, said := new(notepad), new(strings.Builder)
	s, err := newStream(streamConfig{
		blockSize: 16, store: out, open: func(context.Context, opening) (sink, error) { return out, nil }, position: func() []byte { return nil },
		every: time.Hour, retry: time.Hour, log: slog.New(slog.NewTextHandler(said, nil)), m: newStreamMeters(metrics.NewSet(), 0),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	d, err := engine.NewDecoder(engine.Config{BlockSize: 16})
	if err != nil {
		t.Fatal(err)
	}
	stored := func(size int) []byte {
		return mptest.Encode([]any{1.0, []any{mptest.Map{"type", "BlockStored", "block_hashes", []uint64{1},
			"token_ids", make([]uint64, size), "block_size", size}}})
	}
	for i, c := range []struct {
		size int
		want string
	}{{32, "blocks of 32 tokens, --block-size is 16"}, {32, "blocks of 32 tokens"}, {16, ""}} {
		b, err := d.Decode(stored(c.size))
		if err != nil {
			t.Fatal(err)
		}
		s.Batch(uint64(i), b)
		if why := s.misfit(); !strings.Contains(why, c.want) || (why == "") != (c.want == "") {
			t.Errorf("after blocks of %d tokens it says %q", c.size, why)
		}
	}
	if n := strings.Count(said.String(), "give --block-size 32"); n != 1 {
		t.Errorf("the log says %d times what to do, want once:\n%s", n, said)
	}
}

// Whoever sends what cannot be read sends it again and again: each is counted, and one a
// second is logged.
func TestUnusableBatchesAreLoggedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		out, set := new(notepad), metrics.NewSet()
		s, err := newStream(streamConfig{
			store: out, open: func(context.Context, opening) (sink, error) { return out, nil }, position: func() []byte { return nil },
			every: time.Hour, retry: time.Second, log: slog.New(slog.NewTextHandler(&said, nil)), m: newStreamMeters(set, 0),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for n := range uint64(3000) {
			s.Gap(zmqfeed.Gap{From: n, To: n, Why: zmqfeed.Undecodable})
			time.Sleep(time.Millisecond)
		}
		if n := strings.Count(said.String(), "batches of the engine are lost"); n != 3 {
			t.Errorf("logged %d times in three seconds", n)
		}
		if n := s.cfg.m.gaps.Get(); n != 3000 {
			t.Errorf("counted %d times", n)
		}
	})
}

// A stream whose engine restarts, or loses batches, with every message begins anew
// a bounded number of times, and each time it says so at once.
func TestBeginningAnewAgainAndAgainBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, began := new(notepad), 0
		s, err := newStream(streamConfig{
			store: out, open: func(context.Context, opening) (sink, error) { began++; return out, nil }, position: func() []byte { return nil },
			every: time.Hour, retry: time.Second, log: slog.New(slog.DiscardHandler), m: newStreamMeters(metrics.NewSet(), 0),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for begun := time.Now(); time.Since(begun) < 2*time.Minute; {
			s.Restart(follow.Differs)
			s.Gap(zmqfeed.Gap{Why: zmqfeed.NoReplay})
			time.Sleep(time.Millisecond)
		}
		if began > 60 || began != len(out.said) {
			t.Errorf("it began %d times in two minutes, and %d of them cleared", began, len(out.said))
		}
		time.Sleep(time.Minute)
		before := time.Now()
		if s.Restart(follow.Shorter); time.Since(before) > 0 {
			t.Errorf("a single restart takes %v", time.Since(before))
		}
	})
}
