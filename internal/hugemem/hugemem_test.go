package hugemem

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/kvatlas/kvatlas/internal/race"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

func TestBlocksAreAlignedZeroedAndWritable(t *testing.T) {
	for _, size := range []int{Size, 3 * Size} {
		for _, b := range []Block{Alloc(size), {mapWords(size), true}} {
			if b.Words == nil {
				continue // the system maps nothing
			}
			if len(b.Words) != size/8 {
				t.Fatalf("%d words, want %d", len(b.Words), size/8)
			}
			if b.mapped && uintptr(unsafe.Pointer(&b.Words[0]))%Size != 0 {
				t.Errorf("block of %d bytes is not aligned", size)
			}
			for i := range b.Words {
				if b.Words[i] != 0 {
					t.Fatalf("word %d is not zero", i)
				}
				b.Words[i] = uint64(i)
			}
			for i := range b.Words {
				if b.Words[i] != uint64(i) {
					t.Fatalf("word %d does not keep its value", i)
				}
			}
			b.Free()
		}
	}
}

// TestRaceDetectorSeesBlocks: mapped memory is none that the detector watches.
func TestRaceDetectorSeesBlocks(t *testing.T) {
	b := Alloc(Size)
	defer b.Free()
	racetest.Expect(t, true, func() { b.Words[1000] = 1 }, func() { b.Words[1000] = 2 })
}

func TestMakeIsZeroedAndAligned(t *testing.T) {
	for _, n := range []int{0, 1, Size/24 - 1, Size/24 + 1, 3*Size/24 + 7} {
		s := Make[[3]uint64](n)
		if len(s) != n {
			t.Fatalf("%d elements, want %d", len(s), n)
		}
		if !race.Enabled && n*24 >= Size && uintptr(unsafe.Pointer(&s[0]))%Size != 0 {
			t.Errorf("%d elements are not aligned", n)
		}
		for i := range s {
			if s[i] != [3]uint64{} {
				t.Fatalf("element %d is not zero", i)
			}
			s[i][2] = uint64(i)
		}
	}
}

// What Make takes is what Taken says, and never more than two huge pages beyond what was asked for.
func TestTaken(t *testing.T) {
	for _, n := range []int{1, Size - 8, Size, Size + 8, 3 * Size} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		b := Make[uint64](n / 8)
		runtime.ReadMemStats(&after)
		took := int(after.TotalAlloc - before.TotalAlloc)
		if took < Taken(n)&^7 || took > Taken(n)+64<<10 || Taken(n) >= n+2*Size {
			t.Errorf("%d bytes take %d, not %d", n, took, Taken(n))
		}
		runtime.KeepAlive(b)
	}
}

// What is allocated after Heap stands where huge pages are asked for.
func TestHeap(t *testing.T) {
	const size = 128 << 20
	asked := Heap(size)
	b := make([]byte, size/2)
	flags := flagsOf(t, uintptr(unsafe.Pointer(&b[len(b)/2])))
	if race.Enabled || flags == "" || !offered() {
		if asked {
			t.Error("huge pages are said to be asked for")
		}
		t.Skip("no such advice here")
	}
	if !asked || !strings.Contains(flags+" ", " hg ") {
		t.Errorf("memory of the heap has the flags %q, not hg for huge pages; asked for: %v", flags, asked)
	}
	runtime.KeepAlive(b)
}

// flagsOf returns what the system was told of the mapping at an address; empty where it does not say.
func flagsOf(t *testing.T, at uintptr) string {
	t.Helper()
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		return ""
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return ""
	}
	here := false
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			here = from <= at && at < to
		} else if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && here {
			return strings.TrimRight(flags, "\n")
		}
	}
	return ""
}
