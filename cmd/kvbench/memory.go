package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
)

// footprint is memory in bytes, by who counts it.
type footprint struct {
	heap     int64 // live objects of the Go heap
	mapped   int64 // touched memory that the index maps outside of it
	resident int64 // of the whole process, as the system counts it; 0 if not asked for
}

// memory collects garbage, twice, so that what finalizers and pools held goes
// too, and returns what is left. The resident count needs no word of the index
// and so checks what the index says of itself; but it means something only with
// free pages given back, and then whatever runs next has to take every page
// from the system again.
func memory(ix *index, withResident bool) footprint {
	runtime.GC()
	runtime.GC()
	var f footprint
	if withResident {
		debug.FreeOSMemory()
		f.resident = resident()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f.heap = int64(m.HeapAlloc)
	if ix != nil {
		f.mapped = ix.set.MappedBytes()
	}
	return f
}

// resident returns how many bytes of the process are in memory; 0 where that is not
// known.
func resident() int64 { return residentOf("self") }

// residentOf reads Linux's count of a process's pages in memory; 0 elsewhere.
func residentOf(pid string) int64 {
	b, err := os.ReadFile("/proc/" + pid + "/statm")
	if err != nil {
		return 0
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
