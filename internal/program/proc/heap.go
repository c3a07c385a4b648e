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
	mostHeapRoom  = 64 << 20
	heapRoomShare = 32 // of the memory that the process may use
	leastGOGC     = 50
	mostGOGC      = 1000
)

// heapRoom returns the room of a process that may use so much memory, if that is known.
func heapRoom(limit int64, known bool) int64 {
	if !known {
		return leastHeapRoom
	}
	return min(max(limit/heapRoomShare, leastHeapRoom), mostHeapRoom)
}

// gogc returns by how many per cent of what is alive the heap may grow.
func gogc(live uint64, room int64) int {
	return int(min(max(float64(room)*100/float64(max(live, 1)), leastGOGC), mostGOGC))
}

// collector sets the percentage after each collection.
type collector struct {
	room    int64
	percent int
	sample  [1]metrics.Sample
}

// growHeap lets the heap of this process grow so, unless its user has set GOGC.
func growHeap() {
	if os.Getenv("GOGC") != "" {
		return
	}
	c := &collector{room: heapRoom(sysmem.Limit()), percent: leastGOGC}
	c.sample[0].Name = "/gc/heap/live:bytes"
	c.set()
	c.watch()
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
	metrics.Read(c.sample[:])
	if c.sample[0].Value.Kind() != metrics.KindUint64 {
		return
	}
	p := gogc(c.sample[0].Value.Uint64(), c.room)
	if p > c.percent+c.percent/8 || p < c.percent-c.percent/8 || p == leastGOGC && p != c.percent {
		c.percent = p
		debug.SetGCPercent(p)
	}
}
