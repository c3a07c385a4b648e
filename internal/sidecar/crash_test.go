package sidecar

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
	"github.com/kvatlas/kvatlas/internal/testing/enginetest"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// errKilled is what a killed process's calls come to: nothing after it counts.
var errKilled = errors.New("killed")

// world is an engine and a broker that outlive the sidecar's processes.
type world struct {
	t   *testing.T
	rnd *rand.Rand

	history *enginetest.History
	process uint64 // of the engine
	kept    int    // batches that its replay has

	disk []byte // the kept state; nil: none
	log  []stored
	base map[uint64]int // by incarnation: number of its first batch

	fuse int // operations until the sidecar is killed; negative: it is not
	dead bool
	open []event.Event // ids given, not in the log yet
	inc  uint64
	id   uint64
	lack bool  // the stream is incomplete
	from int   // the batch that is given to the stream, or will be next
	at   place // of the feed
}

// stored is an event in the broker.
type stored struct {
	incarnation uint64
	ev          event.Event
}

// place is where a feed is.
type place struct {
	process uint64
	next    int
}

func (p place) bytes() []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, p.process), uint64(p.next))
}

// tick is one operation that may be the process's last.
func (w *world) tick() error {
	if w.dead {
		return errKilled
	}
	if w.fuse--; w.fuse == 0 {
		w.land(w.rnd.IntN(len(w.open) + 1)) // what was on the wire
		w.open, w.dead = nil, true
		return errKilled
	}
	return nil
}

// land puts the first n open events into the log.
func (w *world) land(n int) {
	for _, ev := range w.open[:n] {
		w.log = append(w.log, stored{w.inc, ev})
	}
	w.open = w.open[n:]
}

func (w *world) load() ([]byte, error) { return w.disk, nil }

func (w *world) save(b []byte) error {
	if err := w.tick(); err != nil {
		return err // before the rename
	}
	w.disk = b
	return w.tick() // after it
}

func (w *world) remove() error {
	if err := w.tick(); err != nil {
		return err
	}
	w.disk = nil
	return nil
}

func (w *world) Publish(_ context.Context, ev event.Event) error {
	if err := w.tick(); err != nil {
		return err
	}
	w.id++
	ev.ID, ev.Incomplete, ev.Engine, ev.Local = w.id, w.lack, slices.Clone(ev.Engine), slices.Clone(ev.Local)
	w.open = append(w.open, ev)
	if w.rnd.IntN(4) == 0 {
		w.land(w.rnd.IntN(len(w.open) + 1))
	}
	return nil
}

func (w *world) Flush(ctx context.Context) error {
	if err := errors.Join(ctx.Err(), w.tick()); err != nil {
		return err
	}
	w.land(len(w.open))
	return nil
}

func (w *world) Close(ctx context.Context) error {
	err := w.Flush(ctx)
	w.open = nil
	return err
}

func (w *world) last() uint64 { return w.id }

func (w *world) setIncomplete(incomplete bool) { w.lack = incomplete }

func (w *world) openSink(_ context.Context, o opening) (sink, error) {
	if err := w.tick(); err != nil {
		return nil, err
	}
	w.open, w.inc, w.id, w.lack = nil, o.incarnation, o.last, o.incomplete
	if _, ok := w.base[o.incarnation]; !ok {
		w.base[o.incarnation] = w.from
	}
	return w, nil
}

// live is one life of the sidecar: it catches up with the engine, which goes on
// meanwhile, and is killed, stopped or left when it has.
func (w *world) live(publish int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.dead = false
	w.at = place{process: w.process}
	s, err := newStream(streamConfig{
		dpRank: 3, identity: 7, store: w, open: w.openSink, position: func() []byte { return w.at.bytes() },
		every: time.Duration(w.rnd.IntN(2)) * time.Hour, retry: time.Microsecond, // saved after each batch or never
		log: slog.New(slog.NewTextHandler(io.Discard, nil)), m: newStreamMeters(metrics.NewSet(), 3),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	alive := func() bool {
		if s.saving.busy.Load() {
			s.saving.Wait()
		}
		if w.dead {
			cancel()
		}
		return !w.dead
	}
	if s.start != nil {
		w.at = place{binary.LittleEndian.Uint64(s.start), int(binary.LittleEndian.Uint64(s.start[8:]))}
	}
	w.from = w.at.next
	if s.runUntilDead(ctx, cancel, w) != nil || !alive() {
		s.stopSaving()
		return
	}
	in := zmqfeed.NewFollower(s)
	if s.start != nil {
		in.Resume(uint64(w.at.next), s.incomplete)
	} else {
		in.Anew()
	}
	if w.at.process != w.process {
		w.at = place{process: w.process}
		w.from = 0
		in.Anew()
	}
	for alive() && publish >= 0 {
		have := len(w.history.Batches)
		if oldest := have - w.kept; w.at.next < oldest {
			w.at.next = oldest
			continue
		}
		if w.at.next == have {
			if publish == 0 {
				break
			}
			n := min(publish, 1+w.rnd.IntN(20))
			publish -= n
			if _, err := w.history.Go(n); err != nil {
				w.t.Fatal(err)
			}
			continue
		}
		b := event.Batch{CountCopies: true, Events: slices.Clone(w.history.Batches[w.at.next].Events)}
		w.from = w.at.next
		w.at.next++
		in.Sent(uint64(w.at.next-1), &line{b: b})
	}
	if alive() && w.rnd.IntN(2) == 0 || w.fuse < 0 {
		_ = s.stop(ctx) // an orderly end; it may be killed in it
	}
	s.stopSaving()
	w.open = nil
}

// runUntilDead runs the stream, whose retries would go on in a killed process.
func (s *stream) runUntilDead(ctx context.Context, cancel context.CancelFunc, w *world) error {
	inner := s.cfg.open
	s.cfg.open = func(ctx context.Context, o opening) (sink, error) {
		out, err := inner(ctx, o)
		if w.dead {
			cancel()
		}
		return out, err
	}
	s.cfg.store = dying{w, cancel}
	return s.run(ctx)
}

// dying is a world as a store whose death ends the process's waits.
type dying struct {
	*world
	cancel context.CancelFunc
}

func (d dying) save(b []byte) error {
	err := d.world.save(b)
	if d.dead {
		d.cancel()
	}
	return err
}

func (d dying) remove() error {
	err := d.world.remove()
	if d.dead {
		d.cancel()
	}
	return err
}

// other is a worker that has everything that the engine ever stored, under the
// same names.
const other core.Holder = 1

// fleet returns an index that knows it.
func (w *world) fleet() *core.Oracle {
	o := core.NewOracle()
	for i := range w.history.Batches {
		for j := range w.history.Batches[i].Events {
			if ev := &w.history.Batches[i].Events[j]; ev.Kind == event.Stored {
				o.Store(other, ev, false)
			}
		}
	}
	return o
}

// storeIncomplete stores as the semantics say of an incomplete stream.
func storeIncomplete(o *core.Oracle, ev *event.Event, countCopies bool) core.Outcome {
	if ev.Incomplete && ev.HasParent {
		o.Infer(0, other, ev.Parent)
	}
	return o.Store(0, ev, countCopies)
}

// read is what a reader of the broker's log makes of it.
func (w *world) read() (*core.Oracle, uint64) {
	type key struct{ incarnation, id uint64 }
	o := w.fleet()
	seen := map[key]event.Event{}
	ended := map[uint64]bool{}
	var now, last uint64
	for _, m := range w.log {
		if ended[m.incarnation] {
			continue
		}
		if m.incarnation != now {
			if now != 0 {
				ended[now] = true
			}
			now, last = m.incarnation, 0
			o.Clear(0, 0, true)
		}
		if m.ev.ID <= last {
			if before := seen[key{now, m.ev.ID}]; !reflect.DeepEqual(before, m.ev) {
				w.t.Fatalf("event %d of %x means two things:\n%+v\n%+v", m.ev.ID, now, before, m.ev)
			}
			continue
		}
		if m.ev.ID != last+1 {
			w.t.Fatalf("event %d of %x follows %d", m.ev.ID, now, last)
		}
		last = m.ev.ID
		seen[key{now, last}] = m.ev
		switch m.ev.Kind {
		case event.Stored:
			if out := storeIncomplete(o, &m.ev, false); out.Stored != len(m.ev.Engine) && !m.ev.Incomplete {
				w.t.Fatalf("event %d of %x stores what is held: %+v", last, now, out)
			}
		case event.Removed:
			if out := o.Remove(0, &m.ev, false); out.Removed != len(m.ev.Engine) && !m.ev.Incomplete {
				w.t.Fatalf("event %d of %x removes what is not held: %+v", last, now, out)
			}
		default:
			o.Clear(0, m.ev.Tier, m.ev.AllTiers)
		}
	}
	return o, now
}

// same compares what two oracles hold, but for the number of copies.
func same(have, want *core.Oracle) error {
	plain := func(o *core.Oracle) (list []core.KnownHash) {
		for _, n := range o.KnownHashes(0) {
			for t := range n.Copies {
				n.Copies[t] = min(n.Copies[t], 1)
			}
			list = append(list, n)
		}
		return list
	}
	if a, b := plain(have), plain(want); !slices.Equal(a, b) {
		return fmt.Errorf("%d names, want %d", len(a), len(b))
	}
	return nil
}

// scale is how many times as many histories are wanted.
func scale() int {
	if n, err := strconv.Atoi(os.Getenv("KVATLAS_TEST_SCALE")); err == nil {
		return n
	}
	return 1
}

// TestAKilledSidecarLosesNothing kills sidecars at random operations, the
// writing of the state among them; engines restart and forget in between. What
// readers make of the broker's log is what the engine said, and no id means two
// things.
func TestAKilledSidecarLosesNothing(t *testing.T) {
	releases := enginetest.Releases()
	var lives, gaps, anew, inferred int
	for seed := range uint64(racetest.Few(150) * scale()) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		w := &world{t: t, rnd: rnd, base: map[uint64]int{}, process: 1, kept: 1 << 20}
		release := releases[rnd.IntN(len(releases))]
		w.history = enginetest.NewHistory(release, 3, seed)
		if rnd.IntN(2) == 0 {
			w.kept = 1 + rnd.IntN(60)
		}
		for range 2 + rnd.IntN(6) {
			w.fuse = 1 + rnd.IntN(1+rnd.IntN(200))
			w.live(rnd.IntN(80))
			lives++
			switch rnd.IntN(6) {
			case 0: // the engine restarts while nobody looks
				w.process++
				w.history = enginetest.NewHistory(release, 3, seed+1000*w.process)
				fallthrough
			case 1:
				if _, err := w.history.Go(rnd.IntN(100)); err != nil {
					t.Fatal(err)
				}
			case 2: // bit rot
				if len(w.disk) > 0 {
					w.disk = slices.Clone(w.disk)
					w.disk[rnd.IntN(len(w.disk))] ^= 1 << rnd.IntN(8)
				}
			}
		}
		w.fuse = -1
		w.live(20)
		have, incarnation := w.read()
		want := w.fleet()
		base := w.base[incarnation]
		incomplete := base > 0
		for _, b := range w.history.Batches[base:] {
			for _, ev := range b.Events {
				incomplete = incomplete && ev.Kind != event.Cleared
				if ev.Incomplete = incomplete; ev.Kind == event.Stored {
					storeIncomplete(want, &ev, true)
				} else {
					enginetest.Apply(want, 0, &ev)
				}
			}
		}
		inferred += want.Inferred(0)
		if err := same(have, want); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		anew += len(w.base)
		if base > 0 {
			gaps++
		}
		if base > 0 && w.kept == 1<<20 {
			t.Fatalf("seed %d: the stream begins at batch %d although nothing is lost", seed, base)
		}
	}
	t.Logf("%d lives of sidecars, %d incarnations, %d histories with a loss, %d blocks inferred", lives, anew, gaps, inferred)
	if gaps == 0 || inferred == 0 {
		t.Error("no history had a loss")
	}
}
