package publish

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/recovery"
)

var testSpace = event.Space{Model: "m", BlockSize: 16}

// testConfig is a configuration with its defaults, on no connection.
func testConfig(t *testing.T, change func(*Config)) Config {
	t.Helper()
	cfg := Config{
		Space: testSpace, Worker: 7, Metrics: metrics.NewSet(),
		Log: slog.New(slog.DiscardHandler), Heartbeat: -1,
	}
	if change != nil {
		change(&cfg)
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// decoded returns copies of the messages' batches.
func decoded(t *testing.T, msgs [][]byte) []event.Batch {
	t.Helper()
	var out []event.Batch
	for _, m := range msgs {
		var d event.Decoder
		b, err := d.Decode(m)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, *b)
	}
	return out
}

func counter(cfg Config, name string) uint64 { return cfg.Metrics.GetOrCreateCounter(name).Get() }

func seq(from, n uint64) []uint64 {
	s := make([]uint64, n)
	for i := range s {
		s[i] = from + uint64(i)
	}
	return s
}

// The order promise of the package comment: whatever fails, each message is
// stored once, after at most Window-1 of its successors, and holding that many
// back yields every rank's events in order without a hole.
func TestOrderIsRepairableWhateverFails(t *testing.T) {
	var displaced, retried uint64
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			f := newFakeStream(seed, []float64{0.02, 0.2, 0.6}[seed%3])
			cfg := testConfig(t, func(c *Config) {
				c.Window = 1 + rng.IntN(8)
				c.BatchEvents = 1 + rng.IntN(4)
				c.Heartbeat = 20 * time.Millisecond
				c.MaxPending = 400 + rng.IntN(4000)
				c.StreamWait = -1
			})
			p := start(cfg, f)
			n := 50 + rng.IntN(100)
			for i := range n {
				if err := p.Stored(t.Context(), uint32(rng.IntN(2)), event.Device, Root(), []uint64{uint64(i)}, []uint64{1}); err != nil {
					t.Fatal(err)
				}
				if rng.IntN(8) == 0 {
					time.Sleep(time.Duration(rng.IntN(int(5 * time.Millisecond))))
				}
			}
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // let late answers of the fake end
			displaced += checkOrder(t, seed, cfg.Window, n, decoded(t, f.mu.stored))
			checkHeartbeats(t, seed, f)
			if f.mu.mostFly > 2*cfg.Window {
				t.Errorf("seed %d: %d attempts in flight, window %d", seed, f.mu.mostFly, cfg.Window)
			}
			for _, r := range []string{"timeout", "refused", "disconnected"} {
				retried += counter(cfg, `kvatlas_publish_retries_total{reason="`+r+`"}`)
			}
		})
	}
	if displaced == 0 || retried == 0 {
		t.Fatalf("the histories exercised nothing: %d messages out of order, %d retries", displaced, retried)
	}
	t.Logf("%d messages stored out of order, %d retries", displaced, retried)
}

// checkOrder verifies the promise and returns how many messages were stored
// behind a successor.
func checkOrder(t *testing.T, seed uint64, window, events int, got []event.Batch) (displaced uint64) {
	t.Helper()
	first := func(b event.Batch) uint64 { return b.Events[0].Engine[0] } // the caller's order
	want := slices.Clone(got)
	slices.SortFunc(want, func(a, b event.Batch) int { return int(first(a)) - int(first(b)) })
	for i, b := range want {
		at := slices.IndexFunc(got, func(g event.Batch) bool { return first(g) == first(b) })
		before := 0 // successors that are stored ahead of it
		for _, g := range got[:at] {
			if first(g) > first(b) {
				before++
			}
		}
		if before > window-1 {
			t.Errorf("seed %d: message %d is behind %d successors, window %d", seed, i, before, window)
		}
		if before > 0 {
			displaced++
		}
	}
	last := map[uint32]uint64{}
	n := 0
	for _, b := range want {
		for _, ev := range b.Events {
			if ev.ID != last[ev.DPRank]+1 {
				t.Fatalf("seed %d: rank %d: id %d follows %d", seed, ev.DPRank, ev.ID, last[ev.DPRank])
			}
			last[ev.DPRank] = ev.ID
			if ev.Engine[0] != uint64(n) {
				t.Fatalf("seed %d: event %d is where %d belongs", seed, ev.Engine[0], n)
			}
			n++
		}
	}
	if n != events {
		t.Fatalf("seed %d: %d events stored of %d", seed, n, events)
	}
	return displaced
}

// checkHeartbeats verifies that what a heartbeat names is stored before it.
func checkHeartbeats(t *testing.T, seed uint64, f *fakeStream) {
	t.Helper()
	beats := decoded(t, f.mu.told)
	batches := decoded(t, f.mu.stored)
	for i, beat := range beats {
		for _, pos := range beat.Last {
			seen := map[uint64]bool{}
			for _, b := range batches[:f.mu.toldAt[i]] {
				for _, ev := range b.Events {
					if ev.DPRank == pos.DPRank {
						seen[ev.ID] = true
					}
				}
			}
			for id := uint64(1); id <= pos.ID; id++ {
				if !seen[id] {
					t.Fatalf("seed %d: heartbeat names id %d of rank %d, which is not stored yet", seed, id, pos.DPRank)
				}
			}
		}
	}
}

func TestBatchesByCountBytesAndTime(t *testing.T) {
	send := func(t *testing.T, change func(*Config), n, blocks uint64, pause time.Duration) []event.Batch {
		f := newFakeStream(1, 0)
		p := start(testConfig(t, change), f)
		for i := range n {
			if err := p.Removed(t.Context(), 0, event.Device, seq(i*blocks, blocks)); err != nil {
				t.Fatal(err)
			}
			<-time.After(pause)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		return decoded(t, f.mu.stored)
	}
	check := func(t *testing.T, got []event.Batch, sizes ...int) {
		t.Helper()
		var have []int
		for _, b := range got {
			have = append(have, len(b.Events))
		}
		if !slices.Equal(have, sizes) {
			t.Errorf("batches of %v events, want %v", have, sizes)
		}
	}
	t.Run("count", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			check(t, send(t, func(c *Config) { c.BatchEvents = 4 }, 10, 1, 0), 4, 4, 2)
		})
	})
	t.Run("bytes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			check(t, send(t, func(c *Config) { c.BatchBytes = 1000 }, 5, 50, 0), 2, 2, 1)
		})
	})
	t.Run("time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			// Events 0, 4 and 8 ms after the first are in its batch: linger 10 ms.
			check(t, send(t, func(c *Config) { c.Linger = 10 * time.Millisecond }, 5, 1, 4*time.Millisecond), 3, 2)
		})
	})
	t.Run("at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			check(t, send(t, func(c *Config) { c.Linger = -1 }, 3, 1, time.Millisecond), 1, 1, 1)
		})
	})
}

func TestLargeEventsAreSplitIntoAChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStream(1, 0)
		f.max = 2000
		p := start(testConfig(t, nil), f)
		engine, local := seq(100, 1000), seq(5000, 1000)
		if err := p.Stored(t.Context(), 3, event.Disk, After(99), engine, local); err != nil {
			t.Fatal(err)
		}
		if err := p.Removed(t.Context(), 3, event.Disk, engine); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, m := range f.mu.stored {
			if len(m) > f.max {
				t.Errorf("a message of %d bytes", len(m))
			}
		}
		var stored, locals, removed []uint64
		parent, id := uint64(99), uint64(0)
		for _, b := range decoded(t, f.mu.stored) {
			for _, ev := range b.Events {
				if id++; ev.ID != id || ev.DPRank != 3 || ev.Tier != event.Disk {
					t.Fatalf("event %+v, want id %d", ev, id)
				}
				if ev.Kind == event.Removed {
					removed = append(removed, ev.Engine...)
					continue
				}
				if !ev.HasParent || ev.Parent != parent {
					t.Fatalf("parent %d, want %d", ev.Parent, parent)
				}
				parent = ev.Engine[len(ev.Engine)-1]
				stored, locals = append(stored, ev.Engine...), append(locals, ev.Local...)
			}
		}
		if !slices.Equal(stored, engine) || !slices.Equal(locals, local) || !slices.Equal(removed, engine) {
			t.Error("the parts do not add up to the whole")
		}
	})
}

// An event that is published as several is accepted whole or not at all: what a caller was
// told is dropped is all in the local index, and what it gave up on is not there in part.
func TestAnEventOfManyPartsIsAcceptedWholeOrNotAtAll(t *testing.T) {
	for _, full := range []WhenFull{Drop, Block} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeStream(1, 0)
			f.max = 1000 // some 40 blocks
			f.setRefuse(errLink)
			p := start(testConfig(t, func(c *Config) { c.MaxPending, c.WhenFull, c.StreamWait = 1500, full, -1 }), f)
			blocks := seq(100, 400)
			if err := p.Stored(t.Context(), 0, event.Device, Root(), blocks[:1], blocks[:1]); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := p.Stored(ctx, 0, event.Device, After(blocks[0]), blocks[1:], blocks[1:])
			held := uint64(len(blocks))
			switch {
			case full == Drop && !errors.Is(err, ErrDropped), full == Block && !errors.Is(err, context.DeadlineExceeded):
				t.Fatal(err)
			case full == Block:
				held = 1 // nothing of what the caller was not rid of
			}
			f.setRefuse(nil)
			if err := p.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			data, _ := p.source.Answer(recovery.AppendRequest(nil, recovery.Request{From: 1}), 1<<20)
			reply, err := recovery.DecodeReply(data)
			if err != nil {
				t.Fatal(err)
			}
			var got []uint64
			for _, b := range decoded(t, [][]byte{reply.Body}) {
				for _, ev := range b.Events {
					got = append(got, ev.Engine...)
				}
			}
			if !slices.Equal(got, blocks[:held]) {
				t.Errorf("policy %d: those who ask get %d blocks, want %d", full, len(got), held)
			}
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestAFullPublisherBlocksItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStream(1, 0)
		f.setRefuse(&jetstream.APIError{Code: 503, ErrorCode: 10077, Description: "maximum bytes exceeded"})
		cfg := testConfig(t, func(c *Config) { c.MaxPending, c.StreamWait = 1000, -1 })
		p := start(cfg, f)
		accepted := 0
		for {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err := p.Removed(ctx, 0, event.Device, []uint64{uint64(accepted)})
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				break
			}
			if err != nil || accepted > 1000 {
				t.Fatalf("event %d: %v", accepted, err)
			}
			accepted++
		}
		if got := counter(cfg, "kvatlas_publish_blocked_total"); got != 1 {
			t.Errorf("blocked %d times, want once", got)
		}
		if err := p.Flush(func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			t.Cleanup(cancel)
			return ctx
		}()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("flush against a full stream: %v", err)
		}
		f.setRefuse(nil)
		// Room comes back and nothing was lost; the call that gave up left no id behind.
		if err := p.Removed(t.Context(), 0, event.Device, []uint64{uint64(accepted)}); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkOrder(t, 0, cfg.Window, accepted+1, decoded(t, f.mu.stored))
	})
}

func TestAFullPublisherDropsBySettingAndTheGapShows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStream(1, 0)
		f.setRefuse(errLink)
		cfg := testConfig(t, func(c *Config) {
			c.MaxPending, c.WhenFull, c.Heartbeat = 1000, Drop, time.Second
		})
		p := start(cfg, f)
		dropped := uint64(0)
		for i := range uint64(100) {
			switch err := p.Removed(t.Context(), 0, event.Device, []uint64{i}); {
			case errors.Is(err, ErrDropped):
				dropped++
			case err != nil:
				t.Fatal(err)
			}
		}
		f.setRefuse(nil)
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if err := p.Removed(t.Context(), 0, event.Device, []uint64{100}); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := counter(cfg, `kvatlas_publish_dropped_events_total{reason="full"}`); got != dropped || dropped == 0 {
			t.Errorf("%d drops counted, %d happened", got, dropped)
		}
		var ids []uint64
		for _, b := range decoded(t, f.mu.stored) {
			for _, ev := range b.Events {
				ids = append(ids, ev.ID)
			}
		}
		want := append(seq(1, 100-dropped), 101)
		if !slices.Equal(ids, want) {
			t.Errorf("ids %v, want %v", ids, want)
		}
		beats := decoded(t, f.mu.told)
		if last := beats[len(beats)-1].Last; len(last) != 1 || last[0].ID != 100 {
			t.Errorf("heartbeat after the drop names %v, want id 100", last)
		}
	})
}

func TestAMessageThatCanNeverBeStoredDoesNotBlockTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStream(1, 0)
		f.setRefuse(nats.ErrMaxPayload)
		cfg := testConfig(t, func(c *Config) { c.Linger = -1 })
		p := start(cfg, f)
		if err := p.Removed(t.Context(), 0, event.Device, []uint64{1, 2}); err != nil {
			t.Fatal(err)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.setRefuse(nil)
		if err := p.Removed(t.Context(), 0, event.Device, []uint64{3}); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := counter(cfg, `kvatlas_publish_dropped_events_total{reason="too_large"}`); got != 1 {
			t.Errorf("%d events counted as lost, want 1", got)
		}
		if got := decoded(t, f.mu.stored); len(got) != 1 || got[0].Events[0].ID != 2 {
			t.Errorf("stored %+v, want the second event only", got)
		}
	})
}

func TestAMissingStreamIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStream(1, 0)
		f.setRefuse(jetstream.ErrNoStreamResponse)
		p := start(testConfig(t, nil), f)
		if err := p.Cleared(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		f.setRefuse(nil)
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if f.mu.restores == 0 || len(f.mu.stored) != 1 {
			t.Errorf("%d attempts to make the stream again, %d messages stored", f.mu.restores, len(f.mu.stored))
		}
	})
}

// While nobody leads the stream it is asked often enough that what waits is stored an eighth of
// the time without a leader later, or sooner.
func TestPublishingGoesOnSoonAfterAnotherLeads(t *testing.T) {
	for _, away := range []time.Duration{10 * time.Millisecond, time.Second, 5 * time.Second, 9 * time.Second} {
		for seed := range uint64(20) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeStream(seed, 0)
				cfg := testConfig(t, nil)
				p := start(cfg, f)
				f.setRefuse(jetstream.ErrNoStreamResponse)
				if err := p.Cleared(t.Context(), 0); err != nil {
					t.Fatal(err)
				}
				time.Sleep(away)
				f.setRefuse(nil)
				elected := time.Now()
				if err := p.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				if late := time.Since(elected); late > max(cfg.RetryMin, away/8)+10*f.delay {
					t.Errorf("after %v without a leader an event is stored %v later", away, late)
				}
			})
		}
	}
}

func TestCloseReportsWhatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStream(1, 0)
		f.setRefuse(errLink)
		p := start(testConfig(t, nil), f)
		if err := p.Cleared(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close with an unacknowledged event: %v", err)
		}
		if err := p.Close(ctx); err != nil {
			t.Errorf("second close: %v", err)
		}
		if err := p.Cleared(t.Context(), 0); !errors.Is(err, ErrClosed) {
			t.Errorf("publish after close: %v", err)
		}
	})
}

func TestInvalidEventsAndSettingsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStream(1, 0)
		p := start(testConfig(t, nil), f)
		for _, ev := range []event.Event{
			{},
			{Kind: event.Stored, Engine: []uint64{1}, Local: []uint64{1, 2}},
			{Kind: event.Removed, Tier: event.NumTiers},
			{Kind: event.Removed, DPRank: event.PoolRank}, // it would take the others of its message along
		} {
			if err := p.Publish(t.Context(), ev); !errors.Is(err, event.ErrEncode) {
				t.Errorf("%+v: %v", ev, err)
			}
		}
		if err := p.Close(t.Context()); err != nil || len(f.mu.stored) != 0 {
			t.Errorf("close: %v; %d messages", err, len(f.mu.stored))
		}
	})
	for name, change := range map[string]func(*Config){
		"namespace":  func(c *Config) { c.Namespace = "a.b" },
		"block size": func(c *Config) { c.Space.BlockSize = 0 },
		"model":      func(c *Config) { c.Space.Model = "" },
		"window":     func(c *Config) { c.Window = stream.MaxWindow + 1 },
		"batch":      func(c *Config) { c.BatchEvents = -1 },
		"when full":  func(c *Config) { c.WhenFull = Drop + 1 },
		"resume":     func(c *Config) { c.Resume = []event.Position{{DPRank: event.PoolRank}} },
		"retry":      func(c *Config) { c.RetryMin, c.RetryMax = 2, 1 },
	} {
		cfg := Config{Space: testSpace}
		change(&cfg)
		if _, err := cfg.withDefaults(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := Open(t.Context(), Config{Space: testSpace}); err == nil {
		t.Error("no connection: accepted")
	}
}

// A publisher that resumes counts on where it was, and its message ids are new.
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStream(1, 0)
		p := start(testConfig(t, nil), f)
		for range 3 {
			if err := p.Cleared(t.Context(), 5); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		q := start(testConfig(t, func(c *Config) { c.Incarnation, c.Resume = p.Incarnation(), p.Positions() }), f)
		if err := q.Cleared(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		if err := q.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := decoded(t, f.mu.stored)
		if len(got) != 2 || got[1].Events[0].ID != 4 || got[1].Incarnation != got[0].Incarnation {
			t.Errorf("stored %+v", got)
		}
	})
}

// A stream that refuses events for longer than StreamWait holds no caller up: what finds
// no room is numbered, kept for replicas that ask, and told of past the stream; and all is
// as before once it takes events again.
func TestAStreamThatRefusesEventsHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeStream(1, 0)
		f.setRefuse(&jetstream.APIError{Code: 503, ErrorCode: 10077, Description: "maximum bytes exceeded"})
		cfg := testConfig(t, func(c *Config) { c.MaxPending = 1000 })
		p := start(cfg, f)
		begun := time.Now()
		for i := range uint64(500) {
			if err := p.Removed(t.Context(), 0, event.Device, []uint64{i}); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begun); took < DefaultStreamWait || took > DefaultStreamWait+2*cfg.RetryMax {
			t.Errorf("callers waited for %v", took)
		}
		if n := counter(cfg, `kvatlas_publish_dropped_events_total{reason="refused"}`); n == 0 || n > 500 {
			t.Errorf("%d events are kept only", n)
		}
		if n := cfg.Metrics.GetOrCreateGauge("kvatlas_publish_refused_streams", nil).Get(); n != 1 {
			t.Errorf("%v streams refuse events", n)
		}
		data, _ := p.source.Answer(recovery.AppendRequest(nil, recovery.Request{From: 1}), 1<<20)
		reply, err := recovery.DecodeReply(data)
		if err != nil || reply.Kind != recovery.Events {
			t.Fatalf("asked for the events: %+v, %v", reply, err)
		}
		if b, err := new(event.Decoder).Decode(reply.Body); err != nil || len(b.Events) != 500 {
			t.Errorf("asked for the events: %v", err)
		}
		f.setRefuse(nil)
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := cfg.Metrics.GetOrCreateGauge("kvatlas_publish_refused_streams", nil).Get(); n != 0 {
			t.Errorf("%v streams refuse events after they take them", n)
		}
		if err := p.Removed(t.Context(), 0, event.Device, []uint64{501}); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		stored := decoded(t, f.mu.stored)
		last := stored[len(stored)-1]
		if id := last.Events[len(last.Events)-1].ID; id != 501 {
			t.Errorf("the last event is %d, want 501: numbers tell of what the stream lacks", id)
		}
	})
}
