package proc

import "testing"

func TestTheHeapGrowsByARoomOrByWhatIsAlive(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		limit int64
		known bool
		room  int64
	}{{0, false, 16 * mb}, {100 * mb, true, 16 * mb}, {1024 * mb, true, 32 * mb}, {1 << 40, true, 256 * mb}} {
		if got := heapRoom(c.limit, c.known); got != c.room {
			t.Errorf("of %d bytes (%v) %d, want %d", c.limit, c.known, got, c.room)
		}
	}
	for _, c := range []struct {
		live uint64
		want int
	}{{0, 1000}, {4 * mb, 1000}, {32 * mb, 800}, {128 * mb, 200}, {256 * mb, 100}, {1 << 40, 100}} {
		if got := gogc(c.live, 256*mb); got != c.want {
			t.Errorf("%d bytes alive: %d %%, want %d", c.live, got, c.want)
		}
		// Never more than the room, or what is alive, beyond that.
		if grown := c.live / 100 * uint64(gogc(c.live, 256*mb)); grown > max(256*mb, c.live) {
			t.Errorf("%d bytes alive: the heap grows by %d", c.live, grown)
		}
	}
}

func TestTheCollectorFollowsWhatIsAlive(t *testing.T) {
	c := &collector{room: 1, percent: 500}
	c.sample[0].Name = "/gc/heap/live:bytes"
	c.set()
	if c.percent != leastGOGC {
		t.Errorf("with no room %d %%", c.percent)
	}
}
