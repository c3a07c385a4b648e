package proc

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"github.com/kvatlas/kvatlas/internal/program/sysmem"
)

// The garbage collector runs when the heap has grown by as much as is alive, unless
// GOGC says otherwise. Where little is alive, as in a router, that is many times a
// second, and each run costs requests more than the memory is worth; so the heap may
// grow by a room, whatever is alive. Where much is alive, as in an indexer of a large
// fleet, that is once in many seconds, and the memory is worth more than the run; so it
// grows by half of it. (A memory limit of the runtime's, GOMEMLIMIT, holds beside it.)
const (
	leastHeapRoom = 16 << 20
	mostHeapRoom  = 64 << 20 // unless the program says otherwise
	heapRoomShare = 32       // of the memory that the process may use
	leastGOGC     = 50
	// leastAlive is what the runtime takes percentages of at least.
	leastAlive = 4 << 20
)

// heapRoom returns the room of a process that may use so much memory, if that is known,
// and at most so much room.
func heapRoom(limit int64, known bool, most int64) int64 {
	if !known {
		return leastHeapRoom
	}
	return min(max(limit/heapRoomShare, leastHeapRoom), most)
}

// alive is what the runtime takes percentages of: the heap that the last collection
// left, and what it looks at besides.
var alive = [...]string{"/gc/heap/live:bytes", "/gc/scan/stack:bytes", "/gc/scan/globals:bytes"}

// gogc returns by how many per cent of what is alive the heap may grow.
func gogc(live uint64, room int64) int {
	return int(max(float64(room)*100/float64(max(live, leastAlive)), leastGOGC))
}

// collector sets the percentage after each collection.
type collector struct {
	room    int64
	percent int
	samples [len(alive)]metrics.Sample
}

func newCollector(room int64, percent int) *collector {
	c := &collector{room: room, percent: percent}
	for i, name := range alive {
		c.samples[i].Name = name
	}
	return c
}

// growHeap lets the heap of this process grow so, unless its user has set GOGC.
func growHeap(most int64) {
	if os.Getenv("GOGC") != "" {
		return
	}
	limit, known := sysmem.Limit()
	c := newCollector(heapRoom(limit, known, most), leastGOGC)
	c.set()
	c.watch()
}

// leastProcs is how many goroutines may run at once where there is one processor, as the runtime has it
// itself where a cgroup allows one. With one, the network is asked who can go on only when nobody can,
// and what sweeps behind a collection always can: requests waited for all of it, 22 ms after 250 MB.
const leastProcs = 2

// twoAtOnce lets so many run, unless its user has set GOMAXPROCS.
func twoAtOnce() {
	if runtime.GOMAXPROCS(0) < leastProcs && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(leastProcs)
	}
}

// watch calls set after the next collection, and so on.
func (c *collector) watch() {
	type sign struct{ _ [16]byte } // large enough to be of no other's allocation
	runtime.SetFinalizer(new(sign), func(*sign) {
		c.set()
		c.watch()
	})
}

// set goes by what the last collection left. To change the percentage stops the
// program for a moment, so it does not for little.
func (c *collector) set() {
	metrics.Read(c.samples[:])
	live := uint64(0)
	for _, s := range c.samples {
		if s.Value.Kind() != metrics.KindUint64 {
			return
		}
		live += s.Value.Uint64()
	}
	p := gogc(live, c.room)
	if p > c.percent+c.percent/8 || p < c.percent-c.percent/8 || p == leastGOGC && p != c.percent {
		c.percent = p
		debug.SetGCPercent(p)
	}
}
