package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/recovery"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/shard"
)

// liar is a publisher that answers what it likes. It is safe for concurrent use.
type liar struct {
	answer func(x *liar, q recovery.Request) ([]byte, error)
	say    func(x *liar, n uint64) []byte // what it sends at each step; nil: see lieFor
	rng    *rand.Rand
	last   uint64 // of its messages
	tell   uint64 // for answers that change
	flood  bool   // it has been asked out of all proportion

	mu    sync.Mutex
	asked int
}

const (
	liarWorker      = 1
	liarIncarnation = 77
	// flooded ends a test that no clock would end: time stands still while
	// requests follow each other without a pause.
	flooded = 200_000
)

func (x *liar) ask(ctx context.Context, request []byte) ([]byte, error) {
	q, err := recovery.DecodeRequest(request)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	if x.asked++; x.asked > flooded {
		x.flood = true
	}
	data, err := x.answer(x, q)
	x.mu.Unlock()
	if errors.Is(err, context.DeadlineExceeded) { // it says nothing
		<-ctx.Done()
	}
	return data, err
}

func (x *liar) reply(r recovery.Reply) ([]byte, error) {
	if r.Incarnation == 0 {
		r.Incarnation = liarIncarnation
	}
	return recovery.AppendReply(nil, &r), nil
}

// dump answers with a dump of nothing up to the id.
func (x *liar) dump(last uint64) ([]byte, error) {
	return x.reply(recovery.Reply{Kind: recovery.Dump, Last: last, Dump: 1, Parts: 1})
}

// events answers with n events from the id on.
func (x *liar) events(q recovery.Request, from uint64, n int, more bool) ([]byte, error) {
	var evs []event.Event
	for i := range uint64(n) {
		ev := store(from+i, from+i)
		ev.DPRank = q.DPRank
		evs = append(evs, ev)
	}
	r := recovery.Reply{Kind: recovery.Events, More: more, Last: from + uint64(n)}
	if n > 0 {
		r.Body = batch(liarWorker, liarIncarnation, evs...)
	}
	return x.reply(r)
}

// lies are ways to answer. Those that go on for ever are bounded by the rate
// alone: every answer brings something new.
var lies = map[string]struct {
	endless bool
	answer  func(x *liar, q recovery.Request) ([]byte, error)
}{
	"a dump from beyond": {answer: func(x *liar, q recovery.Request) ([]byte, error) { return x.dump(q.From + 100) }},
	"a dump from before": {answer: func(x *liar, q recovery.Request) ([]byte, error) { return x.dump(max(q.From, 2) - 2) }},
	"a dump of nothing":  {answer: func(x *liar, q recovery.Request) ([]byte, error) { return x.dump(0) }},
	"a dump of all ids":  {answer: func(x *liar, q recovery.Request) ([]byte, error) { return x.dump(math.MaxUint64) }},
	"a dump one further each time": {answer: func(x *liar, q recovery.Request) ([]byte, error) {
		x.tell++
		return x.dump(x.tell)
	}},
	"a dump, then no events": {answer: func(x *liar, q recovery.Request) ([]byte, error) {
		if x.tell++; x.tell%2 == 1 {
			return x.dump(q.From)
		}
		return x.events(q, q.From, 0, false)
	}},
	"no events":           {answer: func(x *liar, q recovery.Request) ([]byte, error) { return x.events(q, q.From, 0, false) }},
	"no events, and more": {answer: func(x *liar, q recovery.Request) ([]byte, error) { return x.events(q, q.From, 0, true) }},
	"the same events":     {answer: func(x *liar, q recovery.Request) ([]byte, error) { return x.events(q, 1, 3, true) }},
	"one event, and more": {endless: true, answer: func(x *liar, q recovery.Request) ([]byte, error) { return x.events(q, max(q.From, 1), 1, true) }},
	"invalid": {answer: func(x *liar, q recovery.Request) ([]byte, error) {
		return x.reply(recovery.Reply{Kind: recovery.Invalid})
	}},
	"too new": {answer: func(x *liar, q recovery.Request) ([]byte, error) {
		return x.reply(recovery.Reply{Kind: recovery.TooNew})
	}},
	"busy":           {answer: func(x *liar, q recovery.Request) ([]byte, error) { return x.reply(recovery.Reply{Kind: recovery.Busy}) }},
	"rubbish":        {answer: func(x *liar, q recovery.Request) ([]byte, error) { return []byte("rubbish"), nil }},
	"nothing at all": {answer: func(x *liar, q recovery.Request) ([]byte, error) { return nil, nil }},
	"nobody listens": {answer: func(x *liar, q recovery.Request) ([]byte, error) { return nil, nats.ErrNoResponders }},
	"silence":        {answer: func(x *liar, q recovery.Request) ([]byte, error) { return nil, context.DeadlineExceeded }},
	"too new, but for dumps": {answer: func(x *liar, q recovery.Request) ([]byte, error) {
		if q.From == 0 {
			return x.dump(5)
		}
		return x.reply(recovery.Reply{Kind: recovery.TooNew})
	}},
	"another rank's events": {answer: func(x *liar, q recovery.Request) ([]byte, error) {
		q.DPRank++
		return x.events(q, max(q.From, 1), 2, false)
	}},
	"another run each time": {answer: func(x *liar, q recovery.Request) ([]byte, error) {
		x.tell++
		return x.reply(recovery.Reply{Kind: recovery.Events, Incarnation: 1000 + x.tell})
	}},
	"a dump of another run each time": {answer: func(x *liar, q recovery.Request) ([]byte, error) {
		x.tell++
		return x.reply(recovery.Reply{Kind: recovery.Dump, Incarnation: 1000 + x.tell, Last: 1 << 40, Dump: 1, Parts: 1})
	}},
	"a dump of endless parts": {endless: true, answer: func(x *liar, q recovery.Request) ([]byte, error) {
		return x.reply(recovery.Reply{Kind: recovery.Dump, Last: 9, Dump: 1, Part: q.Part, Parts: math.MaxUint32, Body: []byte{1}})
	}},
	"a dump whose second part is busy": {answer: func(x *liar, q recovery.Request) ([]byte, error) {
		if q.Dump != 0 {
			return x.reply(recovery.Reply{Kind: recovery.Busy})
		}
		return x.reply(recovery.Reply{Kind: recovery.Dump, Last: 9, Dump: 1, Parts: 2})
	}},
	"a dump that ends in a frame": {answer: func(x *liar, q recovery.Request) ([]byte, error) {
		return x.reply(recovery.Reply{Kind: recovery.Dump, Last: 9, Dump: 1, Parts: 1, Body: []byte{1, 0, 0}})
	}},
}

// says are ways of what a publisher sends of its own, at each step; its answers
// are that there is nothing. For ever new runs the rate alone is a bound.
var says = map[string]struct {
	endless bool
	say     func(x *liar, n uint64) []byte
}{
	"every second event": {say: func(_ *liar, n uint64) []byte { return batch(liarWorker, liarIncarnation, store(2*n, n)) }},
	"an unknown parent each time": {say: func(_ *liar, n uint64) []byte {
		ev := store(n, n)
		ev.HasParent, ev.Parent = true, 1<<40
		return batch(liarWorker, liarIncarnation, ev)
	}},
	"heartbeats of what never came": {say: func(_ *liar, n uint64) []byte {
		return heartbeat(liarWorker, liarIncarnation, event.Position{ID: 1000 * n})
	}},
	"two runs in turns": {say: func(_ *liar, n uint64) []byte {
		return batch(liarWorker, liarIncarnation+n%2, store(2*n, n))
	}},
	"a new run each time": {endless: true, say: func(_ *liar, n uint64) []byte {
		return batch(liarWorker, 1000+n, store(5, n))
	}},
	"no run, and ids that fall": {say: func(_ *liar, n uint64) []byte { return batch(liarWorker, 0, store(n%7, n)) }},
}

// anyLie answers in any of the ways, changing now and then.
func anyLie() func(x *liar, q recovery.Request) ([]byte, error) {
	var names []string
	for name := range lies {
		names = append(names, name)
	}
	var now string
	return func(x *liar, q recovery.Request) ([]byte, error) {
		if now == "" || x.rng.IntN(4) == 0 {
			now = names[x.rng.IntN(len(names))]
		}
		return lies[now].answer(x, q)
	}
}

// fakeTime is a replica's partition with its recoveries, in a bubble of fake time.
type fakeTime struct {
	t         *testing.T
	cfg       *Config
	partition *partition
	set       *shard.Set
	metrics   *metrics.Set
	running   sync.WaitGroup
	cancel    context.CancelFunc
	number    uint64
	begun     time.Time
}

// newFakeTime starts one; ask answers the requests, by worker.
func newFakeTime(t *testing.T, ask map[uint64]func(context.Context, []byte) ([]byte, error)) *fakeTime {
	t.Helper()
	return newFakeTimeOn(t, ask, nil)
}

// newFakeTimeOn goes on with the index; nil: with an empty one.
func newFakeTimeOn(t *testing.T, ask map[uint64]func(context.Context, []byte) ([]byte, error), set *shard.Set) *fakeTime {
	t.Helper()
	if set == nil {
		set = shard.New(shard.Config{Shards: 1})
	}
	b := &fakeTime{t: t, begun: time.Now(), metrics: metrics.NewSet(), set: set}
	index, err := b.set.Open(testSpace)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := Config{
		Conn: &nats.Conn{}, Replica: "one", Index: func(event.Space) (Applier, error) { return index, nil },
		Recoveries: 1, Metrics: b.metrics, Log: slog.New(slog.DiscardHandler),
	}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	b.cfg = &cfg
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	m := newMeters(b.metrics)
	c := newRecoveries(ctx, b.cfg, m, &b.running)
	c.ask = func(ctx context.Context, subject string, request []byte) ([]byte, error) {
		for worker, f := range ask {
			if subject == stream.RecoverSubject("default", testSpace, worker) {
				return f(ctx, request)
			}
		}
		return nil, nats.ErrNoResponders
	}
	b.partition = newPartition(&shared{cfg: b.cfg, m: m, space: testSpace, index: index, badLog: new(onceASecond), recoveries: c})
	b.running.Go(func() { b.partition.run(ctx) })
	return b
}

// stop ends the partition in the middle of what it does.
func (b *fakeTime) stop() {
	b.cancel()
	b.running.Wait()
	b.partition.applying.Wait()
	b.partition.readNotes(context.Background())
}

func (b *fakeTime) close() {
	b.stop()
	b.set.Close()
}

// feed gives the partition a message and waits until nothing happens any more at
// this moment.
func (b *fakeTime) feed(worker uint64, live bool, data []byte) {
	b.t.Helper()
	b.feedAt(worker, live, data, time.Now())
}

// feedAt is feed of a message that its stream, if it has one, stored at a time.
func (b *fakeTime) feedAt(worker uint64, live bool, data []byte, stored time.Time) {
	b.t.Helper()
	w := b.partition.works.Get().(*work)
	w.begin(worker, data)
	if !live {
		b.number++
		n, err := b.partition.source(0).window.add(b.t.Context(), entry{seq: b.number, bytes: len(data)})
		if err != nil {
			b.t.Fatal(err)
		}
		w.source, w.number = b.partition.source(0), n
	}
	if w.live = live; !live {
		w.stored, w.stream, w.seq = stored, b.partition.source(0).stream().created, b.number
	}
	b.partition.queue <- w
	synctest.Wait()
}

func (b *fakeTime) counter(name string) uint64 { return b.metrics.GetOrCreateCounter(name).Get() }

// For two minutes a publisher loses every fifth message, sends heartbeats, and
// answers whatever it likes: it is asked now and then, and no more often than
// that, and others of the replica's workers are recovered meanwhile.
func TestWhateverIsAnsweredRequestsAreBounded(t *testing.T) {
	racetest.Without(t, "a clock that stands still has one goroutine go at a time, mostly")
	ways := []bool{false, true}
	answers := map[string]func(x *liar, q recovery.Request) ([]byte, error){
		"no events": lies["no events"].answer, "a dump": lies["a dump of all ids"].answer,
	}
	for name, lie := range lies {
		for _, live := range ways {
			t.Run(fmt.Sprintf("%s, live %v", name, live), func(t *testing.T) {
				lieFor(t, &liar{answer: lie.answer, rng: rand.New(rand.NewPCG(1, 1))}, live, lie.endless)
			})
		}
	}
	for name, what := range says {
		for _, live := range ways {
			for answer, lie := range answers {
				t.Run(fmt.Sprintf("%s and %s, live %v", name, answer, live), func(t *testing.T) {
					lieFor(t, &liar{answer: lie, say: what.say, rng: rand.New(rand.NewPCG(1, 1))}, live, what.endless)
				})
			}
		}
	}
	for seed := range uint64(10 * scale(t)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			lieFor(t, &liar{answer: anyLie(), rng: rand.New(rand.NewPCG(seed, 1))}, seed%2 == 0, true)
		})
	}
}

// lieFor has a replica follow the liar for two minutes, and an honest worker
// beside it; one recovery at a time has to do for both. A liar that is not
// endless brings nothing.
func lieFor(t *testing.T, x *liar, live, endless bool) {
	const span = 2 * time.Minute
	synctest.Test(t, func(t *testing.T) {
		honest := recovery.NewSource(recovery.Config{Space: testSpace, Worker: 2, Incarnation: 5, Ring: 100, RingBytes: 1 << 20, KeepDump: 10 * time.Second})
		b := newFakeTime(t, map[uint64]func(context.Context, []byte) ([]byte, error){
			liarWorker: x.ask,
			2: func(_ context.Context, request []byte) ([]byte, error) {
				data, _ := honest.Answer(request, 1<<20)
				return data, nil
			},
		})
		defer b.close()
		b.cfg.RecoverLimit = 10 * time.Second
		begun := time.Now()
		id := uint64(0)
		for n := 0; time.Since(begun) < span; n++ {
			time.Sleep(200 * time.Millisecond)
			x.last++
			switch {
			case x.say != nil:
				b.feed(liarWorker, live, x.say(x, x.last))
			case n%5 != 4:
				b.feed(liarWorker, live, batch(liarWorker, liarIncarnation, store(x.last, x.last)))
			}
			if x.say == nil && n%25 == 24 {
				b.feed(liarWorker, live, heartbeat(liarWorker, liarIncarnation, event.Position{ID: x.last}))
			}
			id++
			ev := store(id, id)
			honest.Apply(ev)
			if n%50 != 49 { // else it is lost
				b.feed(2, live, batch(2, 5, ev))
			}
			if x.flood {
				t.Fatalf("asked %d times within %v", x.asked, time.Since(begun))
			}
		}
		b.feed(2, live, heartbeat(2, 5, event.Position{ID: id}))
		time.Sleep(time.Minute)
		if s := b.partition.rank(2, 0).status(); s.LastID != id || s.Recoveries == 0 || s.Incomplete {
			t.Errorf("an honest worker at event %d: %+v", id, s)
		}
		if n := b.partition.recoveries.places.count(); n > 0 {
			t.Errorf("%d recoveries are still at it after a minute", n)
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if most := b.cfg.RecoverRate * int(1+time.Since(begun)/time.Second); x.asked > most {
			t.Errorf("%d requests, want at most %d", x.asked, most)
		}
		if n := b.partition.rank(liarWorker, 0).status().Requests; n != uint64(x.asked) {
			t.Errorf("%d requests, and the status says %d", x.asked, n)
		}
		if most := 250; !endless && x.asked > most {
			t.Errorf("%d requests that bring nothing, want at most %d", x.asked, most)
		}
	})
}
