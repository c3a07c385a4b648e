package mocker

import (
	"context"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/event"
)

// mortalBroker counts lives: of one that is killed nothing is taken any more.
type mortalBroker struct {
	fakeBroker
	lives, kills map[uint64]int
	ended        [][]event.Event // of lives that are over
}

type mortalPublisher struct {
	fakePublisher
	b *mortalBroker
}

func (p mortalPublisher) Kill() { p.b.kills[p.worker]++ }

// stubborn chooses workers in turn, and never one that has failed a request.
type stubborn struct {
	t       *testing.T
	workers uint64
	failed  map[uint64]map[uint64]bool
	chosen  map[uint64]uint64
	ended   map[uint64]bool
	again   int
}

func (s *stubborn) Choose(id uint64, _ int, _ []uint64) (worker uint64, rank uint32, ok bool) {
	for w := range s.workers {
		if w = 1 + (id+w)%s.workers; !s.failed[id][w] {
			s.chosen[id] = w
			return w, uint32(id % 2), true
		}
	}
	return 0, 0, false
}

func (s *stubborn) Failed(id uint64) {
	if s.ended[id] {
		s.t.Errorf("request %d fails after its end", id)
	}
	if s.failed[id] == nil {
		s.failed[id] = map[uint64]bool{}
	}
	s.failed[id][s.chosen[id]] = true
	s.again++
}

func (s *stubborn) Began(uint64, int) {}
func (s *stubborn) First(id uint64) {
	if s.ended[id] {
		s.t.Errorf("request %d begins after its end", id)
	}
}

func (s *stubborn) Ended(id uint64) {
	if s.ended[id] {
		s.t.Errorf("request %d ends twice", id)
	}
	s.ended[id] = true
}

// A worker that dies takes its requests with it; each is answered by another. It returns
// with another publisher and nothing held, as often as it dies.
func TestWorkerDiesAndReturns(t *testing.T) {
	out := discard(t)
	cfg := settings(t, smallFlags("--progress=json", "--die-every=4s", "--die-for=2s", "--rate=60")...)
	b := &mortalBroker{lives: map[uint64]int{}, kills: map[uint64]int{}}
	broker := b.broker()
	fake := broker.Open
	broker.Open = func(ctx context.Context, sp event.Space, worker uint64) (Publisher, error) {
		b.lives[worker]++
		p, err := fake(ctx, sp, worker)
		if b.lives[worker] > 1 {
			b.ended, b.events[worker] = append(b.ended, b.events[worker]), nil
		}
		return mortalPublisher{p.(fakePublisher), b}, err
	}
	through := &stubborn{t, 3, map[uint64]map[uint64]bool{}, map[uint64]uint64{}, map[uint64]bool{}, 0}
	cfg.Through = through
	if err := Run(t.Context(), cfg, broker, out); err != nil {
		t.Fatal(err)
	}
	last := lastLine(t, out)
	if last.Refused != 0 || last.Lost == 0 || last.Finished != 300 || last.Requests != 300+last.Lost || len(through.ended) != 300 {
		t.Errorf("%d requests of 300 were answered and %d ended; %d lost, %d accepted, %d refused", last.Finished, len(through.ended), last.Lost, last.Requests, last.Refused)
	}
	if through.again <= int(last.Lost) {
		t.Errorf("%d failed, of which %d were lost: nobody asked the dead worker", through.again, last.Lost)
	}
	if b.kills[2] < 2 || b.lives[2] < 3 || len(b.kills) != 1 || b.lives[1] != 1 || b.open != 0 {
		t.Errorf("lives %v, killed %v, %d publishers left", b.lives, b.kills, b.open)
	}
	lived := 0
	for _, life := range b.ended {
		if len(life) == 0 {
			continue // nobody asked it
		}
		if lived++; life[0].Kind != event.Stored || life[0].HasParent {
			t.Errorf("a life begins with %.200v", life)
		}
	}
	if lived < 2 {
		t.Errorf("of %d lives %d had something to do", len(b.ended), lived)
	}
	if last.HeldBlocks > int64(6*cfg.Engine.Blocks) || last.HeldBlocks <= 0 {
		t.Errorf("%d blocks are held", last.HeldBlocks)
	}
}

// Without another worker requests are refused while it is dead, and counted.
func TestTheOnlyWorkerDies(t *testing.T) {
	out := discard(t)
	var b fakeBroker
	cfg := settings(t, "--speed=0", "--requests=300", "--workers=1", "--progress=json", "--die-every=2s", "--die-for=1s", "--rate=60")
	if err := Run(t.Context(), cfg, b.broker(), out); err != nil {
		t.Fatal(err)
	}
	if last := lastLine(t, out); last.Refused == 0 || last.Finished+last.Refused != 300 {
		t.Errorf("of 300 requests %d were answered, %d refused", last.Finished, last.Refused)
	}
	cfg.EventsOut = t.TempDir() + "/events"
	if err := Run(t.Context(), cfg, b.broker(), out); err == nil || !strings.Contains(err.Error(), "--events-out") {
		t.Errorf("a record of several lives: %v", err)
	}
}

// A generated workload is one that engines of the cache's size can serve.
func TestNothingIsTooLarge(t *testing.T) {
	out := discard(t)
	var b fakeBroker
	cfg := settings(t, "--speed=0", "--requests=300", "--workers=2", "--cache-blocks=600", "--progress=json", "--agents=100")
	if err := Run(t.Context(), cfg, b.broker(), out); err != nil {
		t.Fatal(err)
	}
	if last := lastLine(t, out); last.Refused != 0 || last.Finished != 300 {
		t.Errorf("%d requests were refused", last.Refused)
	}
}
