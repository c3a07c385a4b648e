package hugemem

import (
	"fmt"
	"os"
	"syscall"
	"testing"
)

// Where the address space is limited, as by ulimit -v, Heap asks for nothing that would not fit: a heap that gets no
// memory ends the program.
func TestHeapWithinALimit(t *testing.T) {
	text, err := os.ReadFile("/proc/self/statm")
	var used uint64
	if _, scanned := fmt.Sscan(string(text), &used); err != nil || scanned != nil {
		t.Fatal(err, scanned)
	}
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_AS, &was); err != nil {
		t.Fatal(err)
	}
	const left = 1 << 30
	if err := syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: used*uint64(os.Getpagesize()) + left, Max: was.Max}); err != nil {
		t.Skip(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_AS, &was); err != nil {
			t.Error(err)
		}
	}()
	for _, size := range []int{left - Size, left - 8*Size, left, 2*left - Size} {
		Heap(size)
	}
}
