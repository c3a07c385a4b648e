package direct

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
	"github.com/kvatlas/kvatlas/internal/testing/enginetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/shard"
)

var key = Key{event.Space{Model: "m", BlockSize: enginetest.BlockSize}, 7}

func open(t *testing.T) (*Direct, *shard.Set) { return openScheme(t, "") }

// openScheme opens a Direct whose workers all have the engine scheme.
func openScheme(t *testing.T, scheme string) (*Direct, *shard.Set) {
	t.Helper()
	set := shard.New(shard.Config{Shards: 2, EngineScheme: func(event.Space, uint64) string { return scheme }})
	d, err := New(Config{
		Index: func(id event.Space) (ingest.Applier, error) { return set.Open(id) },
		Feed: zmqfeed.Config{
			RetryMin: 5 * time.Millisecond, RetryMax: 50 * time.Millisecond, ProbeMin: 50 * time.Millisecond,
			ReplayAttempts: 10_000, // while the engine restarts nobody answers
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close(); set.Close() })
	return d, set
}

func endpoints(m *enginetest.Mock) map[uint32]Endpoint {
	all := make(map[uint32]Endpoint)
	for i := range m.Ranks {
		events, replay := m.Endpoint(i)
		all[uint32(i)] = Endpoint{Events: events, Replay: replay}
	}
	return all
}

// equal waits until the index holds what the engine's batches from base on say.
func equal(t *testing.T, set *shard.Set, m *enginetest.Mock, base int) {
	t.Helper()
	for i := range m.Ranks {
		want := m.Oracle(i, base)
		waittest.Until(t, func() error {
			sp := set.Lookup(key.Space)
			if sp == nil {
				return errors.New("there is no space")
			}
			return enginetest.CompareSpace(sp, shard.RankID{Worker: key.Worker, DPRank: uint32(i)}, want, 0)
		})
	}
}

// TestFollowsAnEngine goes through losses, restarts of the engine and of the
// feeds, and addresses that change.
func TestFollowsAnEngine(t *testing.T) {
	d, set := open(t)
	m := enginetest.NewMock(t, 1, 2, 0)
	if err := d.Follow(key, endpoints(m)); err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		m.Publish(20 + rnd.IntN(100))
		switch rnd.IntN(5) {
		case 0:
			m.Restart()
		case 1: // the engine's other address
			all := endpoints(m)
			all[1] = Endpoint{Events: "ipc:///nonexistent"}
			if err := d.Follow(key, all); err != nil {
				t.Fatal(err)
			}
			m.Publish(10)
			if err := d.Follow(key, endpoints(m)); err != nil {
				t.Fatal(err)
			}
		case 2:
			d.Unfollow(key)
			if d.Follows(key) {
				t.Fatal("it is still followed")
			}
			m.Publish(10)
			if err := d.Follow(key, endpoints(m)); err != nil {
				t.Fatal(err)
			}
		case 3:
			equal(t, set, m, 0)
		}
	}
	m.Publish(50)
	equal(t, set, m, 0)
	waittest.Until(t, d.Ready)
	for i, x := range d.m.series {
		switch n := d.total(i); {
		case x.Name == "missed_batches_total" && n == 0:
			t.Error("no batch is missed")
		case x.Name == "lost_batches_total" && n > 0:
			t.Errorf("%d batches are lost: %v", n, x.Labels)
		}
	}
	for n, r := range d.Ranks(key) {
		if r.Incomplete || r.UnknownParents > 0 || r.Gaps > 0 {
			t.Errorf("rank %d: %+v", n, r)
		}
	}
}

// TestLossesShow: what cannot be replayed empties the rank and shows; a batch
// that nobody can read, and a single event, only show; a restart makes all good.
func TestLossesShow(t *testing.T) {
	d, set := open(t)
	m := enginetest.NewMock(t, 2, 2, 30)
	m.Publish(100)
	if err := d.Follow(key, endpoints(m)); err != nil {
		t.Fatal(err)
	}
	equal(t, set, m, 70)
	check := func(gaps, lost uint64, incomplete bool) {
		t.Helper()
		waittest.Until(t, func() error {
			for n, r := range d.Ranks(key) {
				if r.Gaps != gaps || r.Lost != lost || r.Incomplete != incomplete {
					return fmt.Errorf("rank %d: %+v, want %d gaps of %d batches, incomplete %t", n, r, gaps, lost, incomplete)
				}
			}
			return nil
		})
	}
	check(1, 70, true)
	m.Restart()
	m.Publish(20)
	equal(t, set, m, 0)
	check(1, 70, false)
	m.Junk(0)
	m.Junk(1)
	m.Publish(20)
	equal(t, set, m, 0)
	check(2, 71, true)
	m.Restart()
	m.Publish(20)
	equal(t, set, m, 0)
	check(2, 71, false)
	m.HalfJunk(0)
	m.HalfJunk(1)
	m.Publish(20)
	equal(t, set, m, 0)
	check(2, 71, true) // no batch is lost, but an event of one
	if got := d.count(func(s RankStatus) bool { return s.Incomplete }); got != 2 {
		t.Errorf("%v incomplete ranks are counted", got)
	}
}

// TestSnapshotsMakeLossesGood: whatever was missed, of an engine that gives snapshots the
// index is complete again with the next batch.
func TestSnapshotsMakeLossesGood(t *testing.T) {
	d, set := open(t)
	m := enginetest.NewMockOfSnapshots(t, 4, 2, 3)
	at := func(replay bool) map[uint32]Endpoint {
		all := endpoints(m)
		for rank, e := range all {
			e.Snapshot = m.Snapshot(int(rank))
			if !replay {
				e.Replay = ""
			}
			all[rank] = e
		}
		return all
	}
	m.Publish(100)
	rnd := rand.New(rand.NewPCG(1, 4))
	for round := range 8 {
		if err := d.Follow(key, at(round%2 == 0)); err != nil {
			t.Fatal(err)
		}
		m.Publish(1 + rnd.IntN(60))
		switch rnd.IntN(4) {
		case 0:
			m.Restart()
			m.Publish(1 + rnd.IntN(40))
		case 1:
			d.Unfollow(key)
			m.Publish(10)
			continue
		}
		m.Lossless.Store(true)
		beat := time.NewTicker(100 * time.Millisecond) // such engines send an empty batch now and then
		waittest.Until(t, func() error {               // what nobody told of is learnt with the next one
			select {
			case <-beat.C:
				m.Publish(1)
			default:
			}
			return fresh(d, m)
		})
		beat.Stop()
		m.Lossless.Store(false)
		equal(t, set, m, 0)
	}
	for i, x := range d.m.series {
		if x.Name == "snapshots_total" && x.Labels[1] == "taken" && d.total(i) < 6 {
			t.Errorf("%d snapshots are taken", d.total(i))
		}
	}
}

// fresh reports which rank is not shown as fresh after the last batch published.
func fresh(d *Direct, m *enginetest.Mock) error {
	for n, r := range d.Ranks(key) {
		if r.Incomplete || r.State != follow.Following || int(r.LastID) != len(m.History[n].Batches) {
			return fmt.Errorf("rank %d: %+v, of %d batches", n, r, len(m.History[n].Batches))
		}
	}
	return nil
}

// TestBlocksWithoutContentAreNoLoss: an engine that moves a block whose content it never told of
// lacks nothing.
func TestBlocksWithoutContentAreNoLoss(t *testing.T) {
	d, set := open(t)
	m := enginetest.NewMock(t, 5, 1, 0)
	m.Lossless.Store(true)
	if err := d.Follow(key, endpoints(m)); err != nil {
		t.Fatal(err)
	}
	m.Publish(10)
	m.NamesAlone(0)
	m.Publish(10)
	equal(t, set, m, 0)
	waittest.Until(t, func() error { return fresh(d, m) })
	if s := d.Ranks(key)[0]; s.Blocks.UnknownBlock != 1 {
		t.Errorf("%+v: the block is not counted", s)
	}
}

// TestWhatIsLostIsInferred: of a rank that lost batches, blocks below unknown
// parents have the place that another worker knows.
func TestWhatIsLostIsInferred(t *testing.T) {
	d, set := openScheme(t, "one")
	m := enginetest.NewMock(t, 3, 1, 30)
	m.Publish(200)
	sp, err := set.Open(key.Space)
	if err != nil {
		t.Fatal(err)
	}
	// The other worker stores everything.
	if _, err := sp.ApplyWait(t.Context(), &event.Batch{Space: key.Space, Worker: 8, Events: m.Stores(0)}); err != nil {
		t.Fatal(err)
	}
	want := m.Incomplete(0, 170)
	if err := d.Follow(key, endpoints(m)); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, func() error {
		return enginetest.CompareSpace(sp, shard.RankID{Worker: key.Worker}, want, 0)
	})
	for _, r := range sp.Ranks() {
		if r.Worker == key.Worker && (r.Inferred == 0 || r.Inferred != want.Inferred(0)) {
			t.Errorf("%d blocks are inferred, want %d", r.Inferred, want.Inferred(0))
		}
	}
	if s := d.Ranks(key)[0]; !s.Incomplete || s.Blocks.Inferred == 0 {
		t.Errorf("%+v", s)
	}
}

func TestAnEngineThatIsAwayDoesNotKeepTheIndexUnready(t *testing.T) {
	d, _ := open(t)
	if err := d.Follow(key, map[uint32]Endpoint{0: {Events: "tcp://127.0.0.1:1"}}); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, d.Ready)
	if s := d.Ranks(key)[0]; s.LastError == "" || s.State != follow.Away || !s.Stale {
		t.Errorf("%+v", s)
	}
	d.Close()
	if err := d.Follow(key, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("following after Close: %v", err)
	}
}

// TestADeadWorkerOfManyRanksIsSaidInAFewLines: its ranks go at once, and may be a thousand.
func TestADeadWorkerOfManyRanksIsSaidInAFewLines(t *testing.T) {
	d, _ := open(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close() //nolint:errcheck // only read
	d.cfg.Log = slog.New(slog.NewTextHandler(write, nil))
	lines := make(chan int)
	go func() {
		n := 0
		for s := bufio.NewScanner(read); s.Scan(); n++ {
			t.Log(s.Text())
		}
		lines <- n
	}()
	ranks := make(map[uint32]Endpoint)
	for n := range uint32(100) {
		ranks[n] = Endpoint{Events: "tcp://127.0.0.1:1"}
	}
	began := time.Now()
	if err := d.Follow(key, ranks); err != nil {
		t.Fatal(err)
	}
	waittest.For(t, "all have been tried", func() bool { return d.Ready() == nil })
	if err := d.Follow(key, ranks); err != nil {
		t.Fatal(err)
	}
	d.Unfollow(key)
	write.Close()
	if n := <-lines; n > 8*(1+int(time.Since(began)/(10*time.Second))) {
		t.Errorf("%d lines of a hundred ranks", n)
	}
}

// What can never be followed is an error, and keeps nobody else from being followed.
func TestWhatCannotBeFollowed(t *testing.T) {
	d, _ := open(t)
	there := Endpoint{Events: "tcp://127.0.0.1:1"}
	for rank, bad := range map[uint32]Endpoint{event.PoolRank: there, 4: {}, 5: {Events: "127.0.0.1:1"}, 6: {Events: "tcp://*:1"}, 7: {Events: there.Events, Replay: "tcp://*:1"}} {
		if err := d.Follow(key, map[uint32]Endpoint{0: there, rank: bad}); err == nil {
			t.Errorf("rank %d is followed at %+v", rank, bad)
		}
		if all := d.Ranks(key); len(all) != 1 || all[0].Endpoint != there.Events {
			t.Errorf("rank %d: %+v", rank, all)
		}
	}
}
