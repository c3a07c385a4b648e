package recovery

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

var testSpace = event.Space{Model: "m", BlockSize: 16}

func newSource(change func(*Config)) *Source {
	cfg := Config{Space: testSpace, Worker: 7, Incarnation: 99, Ring: 20, RingBytes: 1 << 20, KeepDump: time.Minute}
	if change != nil {
		change(&cfg)
	}
	return NewSource(cfg)
}

// ask makes a request and checks what every reply says.
func ask(t testing.TB, s *Source, q Request, limit int) Reply {
	t.Helper()
	data, kind := s.Answer(AppendRequest(nil, q), limit)
	r, err := DecodeReply(data)
	if err != nil || r.Kind != kind {
		t.Fatalf("%+v: %v, %v", r, kind, err)
	}
	if r.Incarnation != s.cfg.Incarnation || len(data) > limit {
		t.Fatalf("reply of %d bytes: %+v", len(data), r)
	}
	return r
}

// walker makes up what one rank's cache does.
type walker struct {
	rng *rand.Rand
	id  map[uint32]uint64
}

func (w *walker) step(dpRank uint32) event.Event {
	name := func() uint64 { return 1 + w.rng.Uint64N(40) }
	w.id[dpRank]++
	ev := event.Event{Kind: event.Stored, DPRank: dpRank, ID: w.id[dpRank], Tier: event.Tier(w.rng.IntN(3))}
	switch w.rng.IntN(12) {
	case 0:
		ev.Kind, ev.AllTiers = event.Cleared, w.rng.IntN(2) == 0
	case 1, 2, 3:
		ev.Kind, ev.Engine = event.Removed, []uint64{name(), name()}
	case 4:
		ev.Engine = []uint64{name()}
	default:
		ev.HasParent, ev.Parent = w.rng.IntN(3) > 0, name()
		for range 1 + w.rng.IntN(4) {
			ev.Engine, ev.Local = append(ev.Engine, name()), append(ev.Local, w.rng.Uint64N(6))
		}
		if !ev.HasParent {
			ev.Parent = 0
		}
	}
	return ev
}

func apply(x core.Index, h core.Holder, ev *event.Event, countCopies bool) {
	switch ev.Kind {
	case event.Stored:
		x.Store(h, ev, countCopies)
	case event.Removed:
		x.Remove(h, ev, countCopies)
	case event.Cleared:
		x.Clear(h, ev.Tier, ev.AllTiers)
	}
}

// A replica that asks at any time from anywhere has, with the answers, what
// the worker has: by events where the ring reaches back, else by a dump.
func TestAnswersBringAReplicaUpToDate(t *testing.T) {
	kinds := map[Kind]int{}
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 1))
		count := seed%2 == 0
		s := newSource(func(c *Config) {
			c.CountCopies = count
			if seed%5 == 0 {
				c.RingBytes = 1500
			}
		})
		w := &walker{rng: rng, id: map[uint32]uint64{}}
		truth, replica := core.NewOracle(), core.NewOracle()
		var last uint64 // of rank 1 at the replica
		limit := 400 + rng.IntN(2000)
		for range 20 {
			for range rng.IntN(12) {
				ev := w.step(1)
				apply(truth, 0, &ev, count)
				s.Apply(ev)
				other := w.step(2)
				s.Apply(other)
			}
			if w.id[1] == 0 {
				continue
			}
			if rng.IntN(10) == 0 {
				last, replica = 0, core.NewOracle()
			}
			from := last + 1
			if last == 0 && rng.IntN(2) == 0 {
				from = 0
			}
			for more := true; more; {
				q := Request{DPRank: 1, From: from}
				r := ask(t, s, q, limit)
				kinds[r.Kind]++
				switch r.Kind {
				case Events:
					if len(r.Body) > 0 {
						batches, err := event.Decode(r.Body)
						if err != nil || len(batches) != 1 || batches[0].Incarnation != 99 || batches[0].Worker != 7 {
							t.Fatal(batches, err)
						}
						for _, ev := range batches[0].Events {
							if ev.ID != last+1 || ev.DPRank != 1 {
								t.Fatalf("seed %d: event %d of rank %d after %d", seed, ev.ID, ev.DPRank, last)
							}
							last = ev.ID
							apply(replica, 0, &ev, batches[0].CountCopies)
						}
					}
					more = r.More
					if !more && last != r.Last {
						t.Fatalf("seed %d: event %d is the last, not %d", seed, r.Last, last)
					}
				case Dump:
					replica = core.NewOracle()
					restore := core.Restorer{Index: replica}
					var frames Frames
					for part := uint32(0); ; part++ {
						if err := frames.Add(r.Body, func(b *event.Batch, copies [][]uint32) error {
							for i := range b.Events {
								restore.Add(&b.Events[i], copies[i])
							}
							return nil
						}); err != nil {
							t.Fatal(err)
						}
						if part+1 == r.Parts {
							break
						}
						ev := w.step(1) // live events go on meanwhile
						apply(truth, 0, &ev, count)
						s.Apply(ev)
						r = ask(t, s, Request{DPRank: 1, Dump: r.Dump, Part: part + 1}, limit)
						if r.Kind != Dump || r.Part != part+1 {
							t.Fatalf("part %d: %+v", part+1, r)
						}
					}
					if err := frames.Finish(); err != nil {
						t.Fatal(err)
					}
					restore.Finish()
					last = r.Last
				default:
					t.Fatalf("seed %d: from %d: %s", seed, q.From, r.Kind)
				}
				from = last + 1
			}
			id := func(core.Holder) (uint64, uint32) { return 7, 1 }
			if a, b := truth.Digest(1, id), replica.Digest(1, id); a != b || last != w.id[1] {
				t.Fatalf("seed %d: after event %d of %d: digest %x, want %x", seed, last, w.id[1], b, a)
			}
		}
	}
	if kinds[Events] == 0 || kinds[Dump] == 0 {
		t.Errorf("answers %v", kinds)
	}
}

func TestWhatHasNoAnswerIsSaid(t *testing.T) {
	now := time.Now()
	s := newSource(func(c *Config) {
		c.Now = func() time.Time { return now }
		c.Dumps = 1
		c.Resume = []event.Position{{DPRank: 3, ID: 50}}
	})
	for i := range uint64(200) {
		ev := event.Event{Kind: event.Stored, ID: i + 1, Engine: []uint64{i, i + 1000}, Local: []uint64{i, 5}}
		s.Apply(ev)
		ev.DPRank = 1
		s.Apply(ev)
	}
	const limit = 600
	for want, q := range map[Kind]Request{
		TooNew:  {From: 202},
		Invalid: {From: 10, To: 9},
	} {
		if r := ask(t, s, q, limit); r.Kind != want || r.Last != 200 {
			t.Errorf("%+v: %+v", q, r)
		}
	}
	if r := ask(t, s, Request{From: 201}, limit); r.Kind != Events || len(r.Body) > 0 || r.More {
		t.Errorf("nothing follows: %+v", r)
	}
	if data, kind := s.Answer([]byte("KVR\x01"), limit); kind != Invalid || len(data) > limit {
		t.Errorf("rubbish: %s", kind)
	}
	if data, _ := s.Answer(AppendRequest(nil, Request{DPRank: 9, From: 1}), limit); data != nil {
		t.Errorf("a rank of another publisher: %d bytes", len(data))
	}
	r := ask(t, s, Request{DPRank: 3, From: 0}, limit)
	if r.Kind != Dump || !r.Incomplete || r.Last != 50 || len(r.Body) > 0 {
		t.Errorf("a rank whose past is not known: %+v", r)
	}
	// As many dumps at a time as are allowed: an ended one gives its room.
	r = ask(t, s, Request{From: 0}, limit)
	if r.Kind != Dump || r.Parts < 2 {
		t.Fatalf("a dump: %+v", r)
	}
	if again := ask(t, s, Request{From: 1}, limit); again.Kind != Dump || again.Dump != r.Dump {
		t.Errorf("the dump of another replica: %+v", again)
	}
	if busy := ask(t, s, Request{DPRank: 1}, limit); busy.Kind != Busy {
		t.Errorf("another rank's dump meanwhile: %+v", busy)
	}
	if bad := ask(t, s, Request{Dump: r.Dump, Part: r.Parts}, limit); bad.Kind != Invalid {
		t.Errorf("a part beyond: %+v", bad)
	}
	now = now.Add(time.Hour)
	if gone := ask(t, s, Request{Dump: r.Dump, Part: 1}, limit); gone.Kind != Busy {
		t.Errorf("a dump that nobody asked for in an hour: %+v", gone)
	}
	if next := ask(t, s, Request{DPRank: 1}, limit); next.Kind != Dump {
		t.Errorf("the other rank's turn: %+v", next)
	}
	s.Apply(event.Event{Kind: event.Cleared, AllTiers: true, DPRank: 3, ID: 51})
	if r := ask(t, s, Request{DPRank: 3, From: 51}, limit); r.Incomplete {
		t.Errorf("cleared, and incomplete: %+v", r)
	}
}

// A Source that is told what a resumed rank holds dumps that.
func TestAResumedRankIsWhole(t *testing.T) {
	s := newSource(func(c *Config) {
		c.Resume = []event.Position{{DPRank: 3, ID: 50}}
		c.Holds = func(_ uint32, add func(*event.Event, []uint32)) {
			add(&event.Event{Kind: event.Stored, Engine: []uint64{1, 2}, Local: []uint64{1, 2}}, []uint32{1, 1})
		}
	})
	r := ask(t, s, Request{DPRank: 3}, 1000)
	if r.Kind != Dump || r.Incomplete || r.Last != 50 || len(r.Body) == 0 {
		t.Errorf("%+v", r)
	}
}

func TestRingIsBounded(t *testing.T) {
	s := newSource(func(c *Config) { c.Ring, c.RingBytes = 10, 4000 })
	w := &walker{rng: rand.New(rand.NewPCG(1, 1)), id: map[uint32]uint64{}}
	for range 500 {
		s.Apply(w.step(0))
		sum := 0
		r := s.mu.ranks[0]
		for i := range r.n {
			sum += eventBytes(r.event(i))
		}
		if r.n > 10 || r.n < 1 || len(r.ring) > 10 || s.mu.bytes != sum || sum > 4000 {
			t.Fatalf("%d events of %d bytes, counted %d", r.n, sum, s.mu.bytes)
		}
	}
}

func FuzzMessages(f *testing.F) {
	s := newSource(nil)
	w := &walker{rng: rand.New(rand.NewPCG(1, 1)), id: map[uint32]uint64{}}
	for range 50 {
		s.Apply(w.step(0))
	}
	for _, q := range []Request{{From: 40}, {From: 0}, {From: 100}, {From: 2, To: 1}} {
		data := AppendRequest(nil, q)
		f.Add(data)
		reply, _ := s.Answer(data, 500)
		f.Add(reply)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if q, err := DecodeRequest(data); err == nil {
			if !slices.Equal(AppendRequest(nil, q), data) {
				t.Errorf("request %+v", q)
			}
			s.Answer(data, 500)
		} else if !errors.Is(err, ErrMessage) {
			t.Error(err)
		}
		r, err := DecodeReply(data)
		if err != nil {
			return
		}
		if !slices.Equal(AppendReply(nil, &r), data) {
			t.Errorf("reply %+v", r)
		}
		var frames Frames
		for i := 0; i < len(r.Body); i += 7 {
			err := frames.Add(r.Body[i:min(len(r.Body), i+7)], func(b *event.Batch, copies [][]uint32) error {
				if len(copies) != len(b.Events) {
					t.Error("copies")
				}
				return nil
			})
			if err != nil {
				return
			}
		}
		_ = frames.Finish()
	})
}

// A length that a peer declares stays a length where an int has 32 bits.
func TestFramesOfADeclaredLengthThatIsTooLarge(t *testing.T) {
	const most = "\xff\xff\xff\xff"
	for name, part := range map[string]string{"a frame": most + most, "a batch in a frame": "\x04\x00\x00\x00" + most} {
		var frames Frames
		if err := frames.Add([]byte(part), nil); !errors.Is(err, ErrMessage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
