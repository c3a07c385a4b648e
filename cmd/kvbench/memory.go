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
	resident int64 // of the whole process, as the system counts it; 0 if unknown
}

// memory collects garbage, twice, so that what finalizers and pools held goes
// too, and returns what is left. The resident count needs no word of the index
// and so checks what the index says of itself.
func memory(ix *index) footprint {
	runtime.GC()
	debug.FreeOSMemory() // collects again and gives free pages back
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f := footprint{heap: int64(m.HeapAlloc), resident: resident()}
	if ix != nil {
		f.mapped = ix.set.MappedBytes()
	}
	return f
}

// resident reads Linux's count of the process's pages in memory; 0 elsewhere.
func resident() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
