package proc

import (
	"runtime"
	"testing"
)

func TestTheHeapGrowsByARoomOrByHalfOfWhatIsAlive(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		limit int64
		known bool
		room  int64
	}{{0, false, 16 * mb}, {100 * mb, true, 16 * mb}, {1024 * mb, true, 32 * mb}, {1 << 40, true, 64 * mb}} {
		if got := heapRoom(c.limit, c.known, mostHeapRoom); got != c.room {
			t.Errorf("of %d bytes (%v) %d, want %d", c.limit, c.known, got, c.room)
		}
	}
	for _, c := range []struct {
		live uint64
		want int
	}{{0, 1600}, {4 * mb, 1600}, {8 * mb, 800}, {32 * mb, 200}, {128 * mb, 50}, {1 << 40, 50}} {
		if got := gogc(c.live, 64*mb); got != c.want {
			t.Errorf("%d bytes alive: %d %%, want %d", c.live, got, c.want)
		}
		// Never more than the room, or half of what is alive, beyond that.
		if grown := c.live / 100 * uint64(gogc(c.live, 64*mb)); grown > max(64*mb, c.live/2) {
			t.Errorf("%d bytes alive: the heap grows by %d", c.live, grown)
		}
	}
}

func TestTheCollectorFollowsWhatIsAlive(t *testing.T) {
	runtime.GC() // before the first one nothing counts as alive
	c := newCollector(1, 500)
	c.set()
	if c.percent != leastGOGC {
		t.Errorf("with no room %d %%", c.percent)
	}
}

// One processor has two at once, unless its user says otherwise; more have as many as they are.
func TestOneProcessorHasTwoAtOnce(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	t.Setenv("GOMAXPROCS", "1")
	if twoAtOnce(); runtime.GOMAXPROCS(0) != 1 {
		t.Error("what the user says is not so")
	}
	t.Setenv("GOMAXPROCS", "")
	if twoAtOnce(); runtime.GOMAXPROCS(0) != leastProcs {
		t.Errorf("%d at once", runtime.GOMAXPROCS(0))
	}
	runtime.GOMAXPROCS(3)
	if twoAtOnce(); runtime.GOMAXPROCS(0) != 3 {
		t.Errorf("%d at once of three", runtime.GOMAXPROCS(0))
	}
}
