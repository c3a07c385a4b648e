package jsonscan

import (
	"strings"
	"syscall"
	"testing"
)

// Pages before and after an input that may not be read are not.
func TestInputsAreNotLeft(t *testing.T) {
	const page = 4096
	memory, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(memory) //nolint:errcheck // it ends with the test
	for _, closed := range [][]byte{memory[:page], memory[2*page:]} {
		if err := syscall.Mprotect(closed, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	input := memory[page : 2*page]
	long, short := make([]uint64, 0, page), make([]uint32, 0, page)
	for _, element := range []string{"7", "-1", "12345678", "12345678901234567890"} {
		for n := range 400 {
			text := "[" + strings.Repeat(element+",", n)
			if len(text) > page {
				break
			}
			for _, at := range []int{0, page - len(text)} {
				b := input[at : at+copy(input[at:], text)]
				var r Reader
				r.Reset(b)
				if got := r.Uint64s(long, page, true); len(got) != n {
					t.Fatalf("%d of %d times %s", len(got), n, element)
				}
				r.Reset(b)
				r.Uint32s(short, page) // it says of some that they are too large
			}
		}
	}
}
