package enginetest

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
)

// index is an index with its one writer's lock.
type index struct {
	mu    sync.Mutex
	radix *core.Radix
}

// applier is a feed's handler that keeps an index.
type applier struct {
	index  *index
	holder core.Holder
	slow   time.Duration // a batch takes

	mu       sync.Mutex
	next     uint64
	outcome  core.Outcome // since the last restart
	others   int          // likewise, blocks of another cache group
	restarts int
	gaps     []zmqfeed.Gap
	wrong    string
	state    zmqfeed.State
}

func (a *applier) Batch(seq uint64, b *event.Batch) (unknownParent, refused bool) {
	if a.slow > 0 {
		<-time.After(a.slow)
	}
	var out core.Outcome
	a.index.mu.Lock()
	others := 0
	for i := range b.Events {
		if ev := &b.Events[i]; ev.Group > 0 {
			others += len(ev.Engine)
		} else {
			out.Add(Apply(a.index.radix, a.holder, ev))
		}
	}
	a.index.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if seq != a.next {
		a.wrong = fmt.Sprintf("batch %d, want %d", seq, a.next)
	}
	a.next = seq + 1
	a.outcome.Add(out)
	a.others += others
	return out.UnknownParent > 0, out.Refused > 0
}

func (a *applier) Snapshot(number uint64, parts iter.Seq[*event.Batch]) (unplaced, refused bool) {
	a.Restart(follow.NoSign)
	for b := range parts {
		a.Batch(number, b)
	}
	return false, false
}

func (a *applier) Restart(follow.Sign) {
	a.index.mu.Lock()
	a.index.radix.Clear(a.holder, 0, true)
	a.index.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next, a.outcome, a.others = 0, core.Outcome{}, 0
	a.restarts++
}

func (a *applier) Gap(g zmqfeed.Gap) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next = g.To + 1
	a.gaps = append(a.gaps, g)
}

func (a *applier) State(s zmqfeed.State) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state = s
}

// rank is one rank of one worker: its publisher, its feed, its history.
type rank struct {
	t       *testing.T
	name    string
	harness *Harness
	pub     Publisher
	process *Process
	history *History
	handler *applier
	feed    *zmqfeed.Feed
	seed    uint64
	dropped int // of all processes
}

const (
	batches  = 3000
	quietTo  = 200 // nothing is dropped before, so that the subscription is in effect
	dropEach = 12
)

// drops are the numbers of batches to drop in [quietTo, to), never the last.
func drops(seed uint64, to int) []uint64 {
	rnd := rand.New(rand.NewPCG(seed, 3))
	var out []uint64
	for n := quietTo; n < to-1; n++ {
		if rnd.IntN(dropEach) == 0 {
			out = append(out, uint64(n))
		}
	}
	return out
}

func newRank(t *testing.T, h *Harness, r Release, n uint32, x *index, holder core.Holder) *rank {
	seed := uint64(holder) + 1
	k := &rank{
		t: t, name: fmt.Sprintf("%s rank %d", r.Name, n), harness: h, seed: seed,
		pub:     Publisher{Release: r, Rank: n, Topic: fmt.Sprintf("kv@pod-%d@m", n), Drop: drops(seed, batches/2)},
		handler: &applier{index: x, holder: holder},
	}
	k.start()
	k.feed = k.follow(k.handler)
	return k
}

// start starts the rank's process, in the place of the one before.
func (k *rank) start() {
	k.process = k.harness.Start(k.t, k.pub)
	k.pub = k.process.Publisher // the ports that were chosen
	k.history = NewHistory(k.pub.Release, k.pub.Rank, k.seed)
	k.dropped += len(k.pub.Drop)
}

func (k *rank) follow(h *applier) *zmqfeed.Feed {
	feed, _ := k.followFrom(nil, h)
	return feed
}

// followFrom follows the rank's stream from a position until the test or stop
// ends it.
func (k *rank) followFrom(position []byte, h *applier) (feed *zmqfeed.Feed, stop func()) {
	feed, err := zmqfeed.New(zmqfeed.Config{
		Endpoint: k.process.RankEndpoint, Replay: k.process.RankReplay, Topic: k.pub.Topic, ExactTopic: true,
		Decoder: engine.Config{BlockSize: BlockSize, Rank: 99}, ReplayAttempts: 10,
		Position: position,
	}, h)
	if err != nil {
		k.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); feed.Run(ctx) }()
	stop = func() { cancel(); <-done }
	k.t.Cleanup(stop)
	return feed, stop
}

func (k *rank) publish(n int) {
	b, err := k.history.Go(n)
	if err != nil {
		k.t.Fatal(err)
	}
	k.process.Publish(b)
}

// until waits for a condition, which sees the handler locked.
func (k *rank) until(h *applier, what string, cond func() bool) {
	k.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		h.mu.Lock()
		ok, have := cond(), fmt.Sprintf("next %d, gaps %v, restarts %d, state %v", h.next, h.gaps, h.restarts, h.state)
		h.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			k.t.Fatalf("%s: still not %s: %s; %+v", k.name, what, have, k.feed.Stats())
		}
		<-time.After(5 * time.Millisecond)
	}
}

// hear publishes until a live message arrives: libzmq takes a while to put a
// subscription into effect, and what is lost meanwhile is no loss of ours.
func (k *rank) hear() {
	k.t.Helper()
	before := k.feed.Stats().Messages
	restarts := k.restarted()
	for k.feed.Stats().Messages == before || k.restarted() != restarts {
		if len(k.history.Batches) >= quietTo-10 {
			k.t.Fatalf("%s: nothing comes live: %+v", k.name, k.feed.Stats())
		}
		k.publish(1)
		<-time.After(50 * time.Millisecond)
		if r := k.restarted(); r != restarts {
			before, restarts = k.feed.Stats().Messages, r
		}
	}
}

func (k *rank) restarted() int {
	k.handler.mu.Lock()
	defer k.handler.mu.Unlock()
	return k.handler.restarts
}

// reach waits for everything that was published.
func (k *rank) reach(h *applier) {
	k.t.Helper()
	n := uint64(len(k.history.Batches))
	k.until(h, fmt.Sprintf("at batch %d", n), func() bool { return h.next == n })
}

// life is the whole scripted history: batches with some lost, a kill in the
// middle of it, another process in its place with a history of its own.
func (k *rank) life() {
	k.hear()
	k.publish(batches - len(k.history.Batches))
	k.until(k.handler, "past the first half, live", func() bool {
		// Replays may have brought what still waits in the queue.
		s := k.feed.Stats()
		return s.Messages+s.Missed > batches/2+100
	})
	k.process.Kill()

	k.seed += 1000
	k.pub.Drop = drops(k.seed, batches)
	k.start()
	k.publish(1)
	k.until(k.handler, "restarted", func() bool { return k.handler.restarts == 1 && k.handler.next > 0 })
	k.hear()
	k.publish(batches - len(k.history.Batches))
	k.process.End(batches)
	k.reach(k.handler)
	k.until(k.handler, "past all that was dropped, live", func() bool { return int(k.feed.Stats().Missed) >= k.dropped })
}

// judge checks what the feed counted.
func (k *rank) judge(oracle *core.Oracle) {
	k.t.Helper()
	s, h := k.feed.Stats(), k.handler
	k.t.Logf("%s: batches %d (live %d, replayed %d), dropped %d, missed %d in %d gaps, replays %d with %d holes, restarts %v, duplicates %d",
		k.name, s.Batches, s.Live, s.Replayed, k.dropped, s.Missed, s.Gaps, s.Replays, s.ReplayHoles, s.Restarts, s.Duplicate)
	if int(s.Missed) != k.dropped {
		k.t.Errorf("%s: %d batches were dropped, %d are counted as missed", k.name, k.dropped, s.Missed)
	}
	if s.Lost != [zmqfeed.NumReasons]uint64{} || len(h.gaps) > 0 || h.wrong != "" || s.Malformed+s.OtherTopic != 0 {
		k.t.Errorf("%s: %s, gaps %v, %+v", k.name, h.wrong, h.gaps, s)
	}
	if h.outcome.UnknownParent != 0 || h.outcome.Replaced != 0 || h.outcome.UnknownBlock != 0 {
		k.t.Errorf("%s: outcome %+v", k.name, h.outcome)
	}
	others := 0
	for _, b := range k.history.Batches {
		others += len(b.Events)
	}
	if others == 0 || k.pub.Release.Groups != (h.others > 0) {
		k.t.Errorf("%s: %d events, %d blocks of another group", k.name, others, h.others)
	}
	for reason, n := range s.Left {
		if n > 0 && engine.Reason(reason) != engine.UnknownField {
			k.t.Errorf("%s: %d left out as %s", k.name, n, engine.Reason(reason))
		}
	}
	k.history.Apply(oracle, h.holder)
}

func (k *rank) compare(x *index, oracle *core.Oracle) {
	k.t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := Compare(x.radix, oracle); err != nil {
		k.t.Errorf("%s: %v", k.name, err)
	}
}

// TestReleases follows two ranks of each release, then joins late.
func TestReleases(t *testing.T) {
	h := Open(t)
	for _, r := range Releases() {
		t.Run(r.Name, func(t *testing.T) {
			h.Fetch(t, r)
			x, oracle := &index{radix: core.NewRadix(core.Options{})}, core.NewOracle()
			ranks := []*rank{newRank(t, h, r, 0, x, 0), newRank(t, h, r, 3, x, 1)}
			for _, k := range ranks {
				k.life()
				k.judge(oracle)
			}
			ranks[0].compare(x, oracle)

			ranks[0].absent()
		})
	}
}

// absent follows the stream of a rank that has published everything, with feeds
// that go on where the one before was: they have only the replay.
func (k *rank) absent() {
	k.t.Helper()
	late := &applier{index: &index{radix: core.NewRadix(core.Options{})}}
	check := func(restarts int) {
		k.t.Helper()
		k.reach(late)
		oracle := core.NewOracle()
		k.history.Apply(oracle, 0)
		k.compare(late.index, oracle)
		if len(late.gaps) > 0 || late.wrong != "" || late.restarts != restarts {
			k.t.Errorf("%s, followed in parts: %s, gaps %v, %d restarts, want %d", k.name, late.wrong, late.gaps, late.restarts, restarts)
		}
	}
	feed, stop := k.followFrom(nil, late)
	k.until(late, "part of the way", func() bool { return late.next > batches/3 })
	stop()
	feed, stop = k.followFrom(feed.Position(nil), late) // the same process
	check(0)
	stop()

	// Another process has already passed where the feed was.
	k.process.Kill()
	k.seed++
	k.pub.Drop = nil
	k.start()
	k.publish(batches + 100)
	k.process.End(batches + 100)
	feed, stop = k.followFrom(feed.Position(nil), late)
	check(1)
	stop()
	// It is known by a batch that differs, or by a shorter replay if it has not
	// passed the feed yet: a busy machine.
	if s := feed.Stats(); s.Restarts[follow.Differs]+s.Restarts[follow.Shorter] != 1 {
		k.t.Errorf("%s: %+v", k.name, s)
	}
}

// TestASlowReaderOfALongReplay joins late and reads so slowly that the sockets'
// buffers fill. Publishers with libzmq's default limit of 1,000 messages then
// leave holes in their replay.
func TestASlowReaderOfALongReplay(t *testing.T) {
	h := Open(t)
	for _, r := range Releases() {
		t.Run(r.Name, func(t *testing.T) {
			h.Fetch(t, r)
			k := &rank{t: t, name: r.Name, harness: h, pub: Publisher{Release: r}}
			k.start()
			const n = 9000 // the publisher keeps 10,000
			k.publish(n)
			k.process.End(n)
			k.handler = &applier{index: &index{radix: core.NewRadix(core.Options{})}, slow: 500 * time.Microsecond}
			k.feed = k.follow(k.handler)
			k.reach(k.handler)
			oracle := core.NewOracle()
			k.judge(oracle)
			k.compare(k.handler.index, oracle)
		})
	}
}

// TestMixedFleet follows two ranks of every release at once, as one fleet in
// one index.
func TestMixedFleet(t *testing.T) {
	h := Open(t)
	x, oracle := &index{radix: core.NewRadix(core.Options{})}, core.NewOracle()
	var fleet [][]*rank // by release: their processes start one after the other
	for i, r := range Releases() {
		h.Fetch(t, r)
		n := core.Holder(2 * i)
		fleet = append(fleet, []*rank{newRank(t, h, r, 0, x, n), newRank(t, h, r, 1, x, n+1)})
	}
	var wg sync.WaitGroup
	for _, ranks := range fleet {
		wg.Go(func() {
			for _, k := range ranks {
				k.life()
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, k := range slices.Concat(fleet...) {
		k.judge(oracle)
	}
	fleet[0][0].compare(x, oracle)
}
