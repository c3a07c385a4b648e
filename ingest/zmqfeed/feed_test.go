package zmqfeed

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// payload is a batch that stores one block, whose hash names process and number.
func payload(process, seq int) []byte {
	return mptest.Encode([]any{1.5, []any{
		[]any{"BlockStored", []uint64{name(process, seq)}, nil, []uint32{1, 2, 3, uint32(seq)}, 4, nil},
	}, 0})
}

func name(process, seq int) uint64 { return uint64(process)<<32 | uint64(seq) }

// recorder is a Handler that checks the promise about numbers as it goes.
type recorder struct {
	t *testing.T

	mu        sync.Mutex
	next      uint64
	have      []uint64      // hashes stored since the start or the last restart
	gaps      []Gap         // likewise
	why       []follow.Sign // of all restarts
	states    []State
	snapshots int
	lacking   int           // events of the last snapshot that say something is missing
	change    chan struct{} // cap 1

	onBatch func(seq uint64) // called without the lock
}

func newRecorder(t *testing.T) *recorder { return &recorder{t: t, change: make(chan struct{}, 1)} }

func (r *recorder) changed() {
	select {
	case r.change <- struct{}{}:
	default:
	}
}

func (r *recorder) Batch(seq uint64, b *event.Batch) (unknownParent, refused bool) {
	if r.onBatch != nil {
		r.onBatch(seq)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.changed()
	if seq != r.next {
		r.t.Errorf("batch %d, want %d", seq, r.next)
	}
	r.next = seq + 1
	for _, ev := range b.Events {
		r.have = append(r.have, ev.Engine...)
	}
	return false, false
}

func (r *recorder) Gap(g Gap) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.changed()
	if g.From != r.next || g.To < g.From {
		r.t.Errorf("gap %+v, want it to begin at %d", g, r.next)
	}
	r.next = g.To + 1
	r.gaps = append(r.gaps, g)
}

func (r *recorder) Snapshot(number uint64, parts iter.Seq[*event.Batch]) (unplaced, refused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.changed()
	r.next, r.have, r.gaps = number+1, nil, nil
	r.snapshots, r.lacking = r.snapshots+1, 0
	for b := range parts {
		for _, ev := range b.Events {
			r.have = append(r.have, ev.Engine...)
			if ev.Incomplete {
				r.lacking++
			}
			unplaced = unplaced || len(ev.Local) == 0 && ev.Kind == event.Stored
		}
	}
	return unplaced, false
}

func (r *recorder) Restart(why follow.Sign) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.changed()
	r.next, r.have, r.gaps = 0, nil, nil
	r.why = append(r.why, why)
}

func (r *recorder) State(s State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.changed()
	r.states = append(r.states, s)
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprintf("next %d, gaps %v, restarts %v, last states %v", r.next, r.gaps, r.why, r.states[max(0, len(r.states)-4):])
}

// until waits for a condition, which sees the recorder locked.
func (r *recorder) until(what string, cond func() bool) {
	r.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		r.mu.Lock()
		ok := cond()
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-r.change:
		case <-time.After(5 * time.Millisecond): // for what is not told to the recorder
		case <-deadline.C:
			r.t.Fatalf("after %v still not: %s; %s", patience, what, r)
		}
	}
}

func (r *recorder) reach(next uint64) {
	r.t.Helper()
	r.until(fmt.Sprintf("batch %d", next), func() bool { return r.next == next })
}

// holds fails unless exactly the numbers [from, to) of the process were given
// since the last restart, but for the skipped ones.
func (r *recorder) holds(process, from, to int, skipped ...int) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var want []uint64
	for i := from; i < to; i++ {
		if !slices.Contains(skipped, i) {
			want = append(want, name(process, i))
		}
	}
	if !slices.Equal(r.have, want) {
		r.t.Fatalf("%d batches %x …, want %d", len(r.have), r.have[:min(4, len(r.have))], len(want))
	}
}

// config is for an engine nearby.
func config(p *enginepub.Publisher) Config {
	return Config{
		Endpoint: p.Endpoint(), Replay: p.ReplayEndpoint(), Decoder: engine.Config{BlockSize: 4},
		RetryMin: 2 * time.Millisecond, RetryMax: 20 * time.Millisecond, ReplayAttempts: 10_000, ReplayRate: 1000,
		ProbeMin: 20 * time.Millisecond, ProbeMax: 50 * time.Millisecond,
	}
}

// start runs a feed until the test or stop ends it.
func start(t *testing.T, cfg Config, h Handler) (f *Feed, stop func()) {
	t.Helper()
	f, err := New(cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return f, stop
}

func publisher(t *testing.T, cfg enginepub.Config) *enginepub.Publisher {
	t.Helper()
	if cfg.Endpoint == "" {
		cfg.Endpoint, cfg.Replay = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
	}
	p, err := enginepub.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// again is a publisher in the place of one that is closed.
func again(t *testing.T, p *enginepub.Publisher, cfg enginepub.Config) *enginepub.Publisher {
	t.Helper()
	p.Close()
	cfg.Endpoint, cfg.Replay = p.Endpoint(), p.ReplayEndpoint()
	return publisher(t, cfg)
}

func publish(p *enginepub.Publisher, process, n int) {
	for range n {
		p.Publish(payload(process, int(p.Next())))
	}
}

func subscribed(r *recorder, p *enginepub.Publisher) {
	r.t.Helper()
	r.until("subscribed and live", func() bool {
		return p.Subscribers() == 1 && len(r.states) > 0 && r.states[len(r.states)-1].Phase == Live
	})
}

// forms runs a test with both forms of replay.
func forms(t *testing.T, test func(t *testing.T, withTopic bool)) {
	for _, withTopic := range []bool{false, true} {
		t.Run(fmt.Sprintf("topic=%v", withTopic), func(t *testing.T) { test(t, withTopic) })
	}
}

func TestReplayThenLive(t *testing.T) {
	forms(t, func(t *testing.T, withTopic bool) {
		for _, topic := range []string{"", "kv@pod@model"} {
			p := publisher(t, enginepub.Config{WithTopic: withTopic, Topic: topic})
			publish(p, 1, 50)
			r := newRecorder(t)
			cfg := config(p)
			cfg.Topic, cfg.ExactTopic = topic, topic != ""
			f, _ := start(t, cfg, r)
			subscribed(r, p)
			publish(p, 1, 50)
			r.reach(100)
			r.holds(1, 0, 100)
			if s := f.Stats(); s.Batches != 100 || s.Replayed < 50 || s.Missed != 0 || s.Lost != [NumReasons]uint64{} || s.Malformed != 0 {
				t.Errorf("topic %q: %+v", topic, s)
			}
		}
	})
}

func TestEveryLostMessageIsReplayedAndCounted(t *testing.T) {
	forms(t, func(t *testing.T, withTopic bool) {
		rnd := rand.New(rand.NewPCG(1, 2))
		const n = 2000
		lost := map[uint64]bool{}
		for range 300 {
			lost[uint64(1+rnd.IntN(n-2))] = true
		}
		p := publisher(t, enginepub.Config{
			WithTopic:  withTopic,
			Lose:       func(seq uint64) bool { return lost[seq] },
			LoseReplay: func(i int, _ uint64) bool { return i > 1 && rnd.IntN(50) == 0 },
		})
		r := newRecorder(t)
		f, _ := start(t, config(p), r)
		subscribed(r, p)
		publish(p, 1, n)
		r.reach(n)
		r.holds(1, 0, n)
		r.until("all live messages are counted", func() bool { s := f.Stats(); return s.Messages+uint64(len(lost)) == n })
		s := f.Stats()
		if int(s.Missed) != len(lost) || s.Batches != n || s.Lost != [NumReasons]uint64{} {
			t.Errorf("%d messages lost; %+v", len(lost), s)
		}
		if s.Live+s.Duplicate != s.Messages {
			t.Errorf("%d live messages are neither applied nor duplicates: %+v", s.Messages-s.Live-s.Duplicate, s)
		}
	})
}

func TestALostLastMessageIsNoticed(t *testing.T) {
	p := publisher(t, enginepub.Config{Lose: func(seq uint64) bool { return seq >= 7 }})
	r := newRecorder(t)
	f, _ := start(t, config(p), r)
	subscribed(r, p)
	publish(p, 1, 10)
	r.reach(10)
	r.holds(1, 0, 10)
	if f.Stats().Probes == 0 {
		t.Error("no probe is counted")
	}
}

func TestRestartOfTheEngine(t *testing.T) {
	for name, after := range map[string]int{"nothing yet": 0, "fewer batches": 5, "as many": 20, "more": 60} {
		t.Run(name, func(t *testing.T) {
			forms(t, func(t *testing.T, withTopic bool) {
				p := publisher(t, enginepub.Config{WithTopic: withTopic})
				r := newRecorder(t)
				f, _ := start(t, config(p), r)
				publish(p, 1, 20)
				r.reach(20)
				p = again(t, p, enginepub.Config{WithTopic: withTopic})
				publish(p, 2, after)
				r.until("a restart", func() bool { return len(r.why) > 0 })
				subscribed(r, p)
				publish(p, 2, 40)
				r.reach(uint64(after + 40))
				r.holds(2, 0, after+40)
				if s := f.Stats(); s.Restarts[follow.Shorter]+s.Restarts[follow.Differs]+s.Restarts[follow.FellBack] == 0 || s.Connects < 2 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

func TestABrokenConnectionIsNoRestart(t *testing.T) {
	p := publisher(t, enginepub.Config{})
	r := newRecorder(t)
	f, _ := start(t, config(p), r)
	for i := range 10 {
		subscribed(r, p)
		publish(p, 1, 100)
		p.Disconnect()
		publish(p, 1, 10)
		r.reach(uint64(110 * (i + 1)))
	}
	r.holds(1, 0, 1100)
	if s := f.Stats(); s.Disconnects != 10 || s.Restarts != [follow.NumSigns]uint64{} || s.Lost != [NumReasons]uint64{} {
		t.Errorf("%+v", s)
	}
}

func TestAReplayThatReachesBackNoFurther(t *testing.T) {
	forms(t, func(t *testing.T, withTopic bool) {
		p := publisher(t, enginepub.Config{Buffer: 10, WithTopic: withTopic})
		publish(p, 1, 100)
		r := newRecorder(t)
		f, stop := start(t, config(p), r)
		r.reach(100)
		r.holds(1, 90, 100)
		if want := []Gap{{0, 89, Retention}}; !slices.Equal(r.gaps, want) {
			t.Errorf("gaps %v, want %v", r.gaps, want)
		}
		stop()
		publish(p, 1, 50)
		cfg := config(p)
		cfg.Position = f.Position(nil)
		r2 := newRecorder(t)
		r2.next = 100
		f2, _ := start(t, cfg, r2)
		r2.reach(150)
		r2.holds(1, 140, 150)
		if want := []Gap{{100, 139, Retention}}; !slices.Equal(r2.gaps, want) {
			t.Errorf("gaps %v, want %v", r2.gaps, want)
		}
		if f.Stats().Lost[Retention] != 90 || f2.Stats().Lost[Retention] != 40 {
			t.Errorf("lost %v, %v", f.Stats().Lost, f2.Stats().Lost)
		}
	})
}

func TestAPositionOutlivesTheFeed(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted=%v", restarted), func(t *testing.T) {
			p := publisher(t, enginepub.Config{})
			publish(p, 1, 30)
			r := newRecorder(t)
			f, stop := start(t, config(p), r)
			r.reach(30)
			stop()
			process := 1
			if restarted {
				p, process = again(t, p, enginepub.Config{}), 2
				publish(p, process, 30)
			}
			publish(p, process, 30)
			cfg := config(p)
			cfg.Position = f.Position(nil)
			next := newRecorder(t)
			next.next = 30
			f, _ = start(t, cfg, next)
			next.reach(60)
			if restarted {
				next.holds(2, 0, 60)
			} else {
				next.holds(1, 30, 60)
			}
			if have := f.Stats().Restarts[follow.Differs] == 1; have != restarted {
				t.Errorf("restarts %v", f.Stats().Restarts)
			}
		})
	}
}

func TestPositionsRefused(t *testing.T) {
	f, err := New(Config{Endpoint: "tcp://h:1", Decoder: engine.Config{BlockSize: 4}}, newRecorder(t))
	if err != nil {
		t.Fatal(err)
	}
	good := f.Position(nil)
	for n := 1; n < len(good); n++ {
		if _, err := New(Config{Endpoint: "tcp://h:1", Decoder: engine.Config{BlockSize: 4}, Position: good[:n]}, newRecorder(t)); err == nil {
			t.Fatalf("%d of %d bytes are taken", n, len(good))
		}
	}
	for i := range 5 {
		bad := slices.Clone(good)
		bad[i] ^= 0x80
		if _, err := New(Config{Endpoint: "tcp://h:1", Decoder: engine.Config{BlockSize: 4}, Position: bad}, newRecorder(t)); err == nil {
			t.Errorf("a position with byte %d flipped is taken", i)
		}
	}
}

func TestASlowHandlerHoldsTheEngineBack(t *testing.T) {
	const n = 1500
	// 30 MB of payloads are more than the sockets' buffers take.
	p := publisher(t, enginepub.Config{HWM: 16})
	r := newRecorder(t)
	release := make(chan struct{})
	var most atomic.Int64
	var f *Feed
	r.onBatch = func(seq uint64) {
		<-release
		_, bytes := f.Queued()
		most.Store(max(most.Load(), int64(bytes)))
	}
	cfg := config(p)
	cfg.QueueMessages, cfg.QueueBytes = 64, 1<<20
	f, err := New(cfg, r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	defer func() { cancel(); <-done }()
	subscribed(r, p)
	for i := range n {
		ballast := mptest.Encode([]any{1.5, []any{
			[]any{"BlockStored", []uint64{name(1, i)}, nil, []uint32{1, 2, 3, uint32(i)}, 4, nil},
			[]any{"Unknown", strings.Repeat("x", 20_000)},
		}, 0})
		p.Publish(ballast)
	}
	close(release)
	r.reach(n)
	r.holds(1, 0, n)
	s := f.Stats()
	if s.Missed == 0 || s.QueueFull == 0 || s.Lost != [NumReasons]uint64{} {
		t.Errorf("%+v", s)
	}
	if limit := int64(cfg.QueueBytes + 30_000); most.Load() > limit {
		t.Errorf("%d bytes were queued, at most %d", most.Load(), limit)
	}
	if s.Left[engine.UnknownEvent] != n {
		t.Errorf("%d unknown events are counted, want %d", s.Left[engine.UnknownEvent], n)
	}
}

func TestUnusableBatchesAreGaps(t *testing.T) {
	forms(t, func(t *testing.T, withTopic bool) {
		for _, live := range []bool{false, true} {
			p := publisher(t, enginepub.Config{WithTopic: withTopic})
			r := newRecorder(t)
			cfg := config(p)
			cfg.MaxMessage = 10_000
			var f *Feed
			if live {
				f, _ = start(t, cfg, r)
				subscribed(r, p)
			}
			publish(p, 1, 3)
			p.Publish(make([]byte, 1<<20))
			publish(p, 1, 3)
			p.Publish([]byte{0x93, 0xc0})
			publish(p, 1, 3)
			if !live {
				f, _ = start(t, cfg, r)
			}
			r.reach(11)
			r.holds(1, 0, 11, 3, 7)
			if want := []Gap{{3, 3, Oversize}, {7, 7, Undecodable}}; !slices.Equal(r.gaps, want) {
				t.Errorf("live %v: gaps %v, want %v", live, r.gaps, want)
			}
			if s := f.Stats(); s.Lost[Oversize] != 1 || s.Lost[Undecodable] != 1 || s.Disconnects != 0 {
				t.Errorf("live %v: %+v", live, s)
			}
		}
	})
}

func TestASilentSubscriptionIsMadeAgain(t *testing.T) {
	var mute atomic.Bool
	mute.Store(true)
	p := publisher(t, enginepub.Config{Lose: func(uint64) bool { return mute.Load() }})
	r := newRecorder(t)
	f, _ := start(t, config(p), r)
	for i := uint64(1); f.Stats().Silent == 0; i++ {
		publish(p, 1, 1)
		r.reach(i)
	}
	mute.Store(false)
	subscribed(r, p)
	n := int(p.Next())
	publish(p, 1, 5)
	r.reach(uint64(n + 5))
	r.holds(1, 0, n+5)
	if s := f.Stats(); s.Connects < 2 || s.Lost != [NumReasons]uint64{} || s.Restarts != [follow.NumSigns]uint64{} {
		t.Errorf("%+v", s)
	}
}

func TestAReplayWithoutAnEndIsAskedAgain(t *testing.T) {
	var holds atomic.Int32
	p := publisher(t, enginepub.Config{HoldReplay: func() bool { return holds.Add(1) <= 2 }})
	publish(p, 1, 10)
	r := newRecorder(t)
	cfg := config(p)
	cfg.ReplayIdle = 50 * time.Millisecond
	f, _ := start(t, cfg, r)
	subscribed(r, p)
	publish(p, 1, 10)
	r.reach(20)
	r.holds(1, 0, 20)
	if s := f.Stats(); s.ReplayBad != 2 || s.Replays < 3 {
		t.Errorf("%+v", s)
	}
}

func TestAnEngineThatKeepsNothingIsNotTakenForRestarted(t *testing.T) {
	p := publisher(t, enginepub.Config{LoseReplay: func(int, uint64) bool { return true }})
	r := newRecorder(t)
	f, _ := start(t, config(p), r)
	subscribed(r, p)
	publish(p, 1, 10)
	r.reach(10)
	r.until("three probes", func() bool { return f.Stats().Probes >= 3 })
	r.holds(1, 0, 10)
	if s := f.Stats(); s.Restarts != [follow.NumSigns]uint64{} {
		t.Errorf("%+v", s)
	}
}

func TestFeedsShareALimitOfReplays(t *testing.T) {
	limit := NewLimit(1)
	p := publisher(t, enginepub.Config{})
	publish(p, 1, 100)
	var running, most atomic.Int32
	var all []*recorder
	for range 8 {
		r := newRecorder(t)
		first := true
		r.onBatch = func(seq uint64) {
			if first {
				first = false
				most.Store(max(most.Load(), running.Add(1)))
			}
			if seq == 99 {
				running.Add(-1)
			}
		}
		cfg := config(p)
		cfg.Limit = limit
		start(t, cfg, r)
		all = append(all, r)
	}
	for _, r := range all {
		r.reach(100)
	}
	if most.Load() != 1 {
		t.Errorf("%d replays ran at once", most.Load())
	}
}

func TestRandomHistories(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 9))
			var mu sync.Mutex // of rnd once publishers have it
			chance := func(n int) bool { mu.Lock(); defer mu.Unlock(); return rnd.IntN(n) == 0 }
			lossy := enginepub.Config{
				WithTopic:  seed%2 == 0,
				Lose:       func(uint64) bool { return chance(10) },
				LoseReplay: func(i int, _ uint64) bool { return i > 1 && chance(30) },
				HWM:        1 + int(seed)*10,
			}
			p := publisher(t, lossy)
			r := newRecorder(t)
			cfg := config(p)
			cfg.ReplayAttempts = 1000
			f, stop := start(t, cfg, r)
			process, restarts := 1, 0
			for range 40 {
				publish(p, process, func() int { mu.Lock(); defer mu.Unlock(); return rnd.IntN(40) }())
				switch {
				case chance(6):
					p.Disconnect()
				case chance(8):
					process, restarts = process+1, restarts+1
					p = again(t, p, lossy)
				case chance(8):
					stop()
					cfg.Position = f.Position(nil)
					// What the feed was told before it ended stays.
					f, stop = start(t, cfg, r)
				}
			}
			n := p.Next()
			r.until("the last process's batches", func() bool {
				return r.next == n && (n == 0 && restarts == 0 || n > 0 && len(r.have) > 0 && r.have[0] == name(process, 0)) ||
					n == 0 && len(r.have) == 0
			})
			r.holds(process, 0, int(n))
			if len(r.gaps) > 0 {
				t.Errorf("gaps %v", r.gaps)
			}
		})
	}
}

func TestNothingRunsAfterwards(t *testing.T) {
	p := publisher(t, enginepub.Config{Lose: func(seq uint64) bool { return seq%3 == 0 }})
	publish(p, 1, 100)
	for range 20 {
		r := newRecorder(t)
		reached := make(chan struct{})
		var once sync.Once
		r.onBatch = func(seq uint64) {
			if seq == 50 {
				once.Do(func() { close(reached) })
			}
		}
		_, stop := start(t, config(p), r)
		<-reached
		stop()
	}
	p.Close()
	buf := make([]byte, 1<<20)
	deadline := time.Now().Add(patience)
	for {
		stacks := string(buf[:runtime.Stack(buf, true)])
		left := 0
		for _, s := range []string{"enginefeed.(*session)", "enginefeed.(*Feed)", "zmtp.(*Conn)", "enginepub.(*Publisher)"} {
			left += strings.Count(stacks, s)
		}
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still running:\n%s", stacks)
		}
		runtime.Gosched()
	}
}

func TestEndpointsOfRanks(t *testing.T) {
	for _, c := range []struct {
		endpoint string
		rank     uint32
		want     string // "": refused
	}{
		{"tcp://10.0.0.1:5557", 0, "tcp://10.0.0.1:5557"},
		{"tcp://10.0.0.1:5557", 7, "tcp://10.0.0.1:5564"},
		{"tcp://[::1]:5557", 1, "tcp://[::1]:5558"},
		{"ipc:///tmp/x", 0, "ipc:///tmp/x"},
		{"127.0.0.1:5557", 0, ""},
		{"tcp://h", 0, ""},
		{"http://h:5557", 0, ""},
		{"ipc:///tmp/x", 1, ""},
		{"tcp://h:65535", 1, ""},
		{"tcp://h:1", 4294967295, ""},
		{"tcp://h:0", 1, ""},
		{"tcp://h", 1, ""},
	} {
		have, err := RankEndpoint(c.endpoint, c.rank)
		if have != c.want || (err == nil) != (c.want != "") {
			t.Errorf("rank %d of %s: %q, %v; want %q", c.rank, c.endpoint, have, err, c.want)
		}
	}
	if have, err := RankEndpoint("", 3); have != "" || err != nil {
		t.Errorf("no endpoint: %q, %v", have, err)
	}
}
