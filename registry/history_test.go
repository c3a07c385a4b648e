package registry

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// TestHistoriesAgainstAModel has workers announce themselves, take over from each
// other, change their ranks and withdraw, HTTP clients register and unregister
// ranks at any replica, operators drain, resume and remove, and replicas come and
// go, all against a real server, and compares what every replica says of it with a
// literal model.
func TestHistoriesAgainstAModel(t *testing.T) {
	for _, seed := range coretest.Seeds(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { newRegistryHistory(t, seed).run(60) })
	}
}

type registryHistory struct {
	t         *testing.T
	rng       *rand.Rand
	bucket    *Bucket
	open      func(name string) *Registry
	replicas  []*Registry
	started   int // replicas
	steps     int
	model     map[uint64]*registered
	drained   map[uint64]bool
	announced map[uint64]*Announcement
	announce  func(w Worker) *Announcement
	publish   func()
	seq       uint64
}

func newRegistryHistory(t *testing.T, seed uint64) *registryHistory {
	b := startBroker(t, t.TempDir())
	js, err := jetstream.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	space := testWorker(0).Space()
	if _, err := stream.Ensure(deadline(t), js, "default", space, stream.Config{MaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	h := &registryHistory{t: t, rng: rand.New(rand.NewPCG(seed, 3)), model: map[uint64]*registered{}, drained: map[uint64]bool{},
		announced: map[uint64]*Announcement{}}
	if h.bucket, err = OpenBucket(deadline(t), b.Conn(), "default", BucketConfig{}); err != nil {
		t.Fatal(err)
	}
	h.open = func(name string) *Registry { return openRegistry(t, b, name, nil) }
	h.announce = func(w Worker) *Announcement {
		a, err := Register(deadline(t), w, AnnounceConfig{Conn: b.Conn(), Lease: time.Minute, Log: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Stop)
		return a
	}
	h.publish = func() {
		ack, err := js.Publish(deadline(t), stream.Subject("default", space, 1), []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		h.seq = ack.Sequence
	}
	for id := range uint64(3) {
		h.model[id] = &registered{http: map[uint32]bool{}, left: map[uint32]Departure{}}
	}
	h.replicas = []*Registry{h.open("a"), h.open("b")}
	return h
}

func (h *registryHistory) run(steps int) {
	for step := range steps {
		for range h.rng.IntN(2) {
			h.publish()
		}
		id, rank := h.rng.Uint64N(3), h.rng.Uint32N(modelRanks)
		what := h.step(id, rank)
		for _, r := range h.replicas {
			waittest.Until(h.t, func() error {
				if err := h.compare(r); err != nil {
					return fmt.Errorf("step %d, %s: replica %s: %w", step, what, r.cfg.Replica, err)
				}
				return nil
			})
		}
	}
}

func (h *registryHistory) step(id uint64, rank uint32) string {
	t, m, ctx := h.t, h.model[id], deadline(h.t)
	h.steps++
	now := Departure{At: epoch.Add(time.Duration(h.steps)), Seq: h.seq}
	some := h.rng.Perm(modelRanks)[:1+h.rng.IntN(modelRanks)]
	slices.Sort(some)
	w := testWorker(id)
	w.Ranks = nil
	for _, n := range some {
		w.Ranks = append(w.Ranks, uint32(n))
	}
	at := h.replicas[h.rng.IntN(len(h.replicas))]
	body := fmt.Sprintf(`{"instance_id":%d,"endpoint":"tcp://127.0.0.1:5557","model_name":%q,"routing_group":%q,"block_size":16,"dp_rank":%d}`, id, w.Model, w.Group, rank)
	serve := func(f func() (int, []byte), want int) {
		t.Helper()
		if got, answer := f(); got != want {
			t.Errorf("%s: %d %s, want %d", body, got, answer, want)
		}
	}
	check := func(err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	switch h.rng.IntN(9) {
	case 0, 1:
		m.change(now, func() { m.lease = w.Ranks })
		h.announced[id] = h.announce(w)
		return fmt.Sprint("announce ", id, w.Ranks)
	case 2:
		a := h.announced[id]
		if a == nil {
			return "nothing"
		}
		m.change(now, func() { m.lease = w.Ranks })
		check(a.Update(ctx, w), nil)
		return fmt.Sprint("update ", id, w.Ranks)
	case 3:
		a := h.announced[id]
		if a == nil {
			return "nothing"
		}
		delete(h.announced, id)
		m.change(now, func() { m.lease = nil })
		check(a.Close(ctx), nil)
		return fmt.Sprint("withdraw ", id)
	case 4:
		want := http.StatusCreated
		if m.http[rank] {
			want = http.StatusConflict
		}
		m.http[rank] = true
		serve(func() (int, []byte) { return at.ServeRegister(ctx, []byte(body)) }, want)
		return fmt.Sprint("register ", id, rank)
	case 5:
		want := http.StatusOK
		if !m.http[rank] {
			if want = http.StatusNotFound; m.lease != nil {
				want = http.StatusConflict
			}
		}
		m.change(now, func() { delete(m.http, rank) })
		serve(func() (int, []byte) { return at.ServeUnregister(ctx, []byte(body)) }, want)
		return fmt.Sprint("unregister ", id, rank)
	case 6:
		if h.drained[id] = !h.drained[id]; h.drained[id] {
			check(h.bucket.Drain(ctx, id, "op"), nil)
			check(h.bucket.Drain(ctx, id, "op"), ErrAlready)
		} else {
			check(h.bucket.Resume(ctx, id), nil)
			check(h.bucket.Resume(ctx, id), ErrAlready)
		}
		return fmt.Sprint("drained ", id, h.drained[id])
	case 7:
		switch {
		case !m.there() && !h.drained[id]:
			check(h.bucket.Remove(ctx, id, true), ErrUnknownWorker)
			return "nothing"
		case m.lease != nil:
			check(h.bucket.Remove(ctx, id, false), ErrAlive)
		}
		m.change(now, func() { m.lease, m.http = nil, map[uint32]bool{} })
		delete(h.announced, id) // it would be back with its next heartbeat
		h.drained[id] = false
		check(h.bucket.Remove(ctx, id, true), nil)
		return fmt.Sprint("remove ", id)
	default:
		i := h.rng.IntN(len(h.replicas))
		h.replicas[i].Close()
		h.started++
		h.replicas[i] = h.open(fmt.Sprint("r", h.started))
		return "a new replica"
	}
}

// compare compares what the replica says with the model.
func (h *registryHistory) compare(r *Registry) error {
	for id, m := range h.model {
		k := testWorker(id).Key()
		e, known := r.Lookup(k)
		if known && e.Present() != m.there() || !known && m.there() || r.IsDrained(id) != h.drained[id] {
			return fmt.Errorf("worker %d is %v, drained %v", id, e.State, r.IsDrained(id))
		}
		if m.there() && (e.Announced != (m.lease != nil) || e.HTTP != (len(m.http) > 0)) {
			return fmt.Errorf("worker %d: announced %v, over HTTP %v", id, e.Announced, e.HTTP)
		}
		for rank := range uint32(modelRanks) {
			if m.there() && slices.Contains(e.Ranks, rank) != m.covers(rank) {
				return fmt.Errorf("worker %d has ranks %v, not as the model: %+v", id, e.Ranks, m)
			}
			want, gone := m.of(rank)
			if got, left := r.Left(k, rank); left != gone || got.Seq != want.Seq || got.Silent {
				return fmt.Errorf("rank %d of worker %d left %v %+v, want %v %+v", rank, id, left, got, gone, want)
			}
		}
	}
	return nil
}
