package core

import (
	"strconv"
	"testing"
	"unsafe"
)

func TestLayout(t *testing.T) {
	for name, s := range map[string]struct {
		have, want uintptr
		pointers   bool
	}{
		"chunk":     {unsafe.Sizeof(chunk{}), 64, false},
		"body":      {unsafe.Sizeof(body{}), bodyBytes, true},
		"run":       {uintptr(sizeClass(int64(unsafe.Sizeof(run{})))), runBytes, true},
		"run.ahead": {unsafe.Offsetof(run{}.ahead), 8, true},       // compare_amd64.s counts on it
		"childSet":  {unsafe.Offsetof(childSet{}.table), 24, true}, // and on this
		"aim":       {unsafe.Sizeof(aim{}), 24, true},              // probe_amd64.s counts on it
		"ref":       {unsafe.Sizeof(ref{}), 16, true},              // and on this
		"leaf":      {unsafe.Sizeof(leaf{}), 16, false},            // and on where its window is
		"slab":      {unsafe.Sizeof(slab{}), 104, true},            // and on this
		"filter":    {unsafe.Sizeof(filter{}), filterBytes, true},
		"filter.n":  {unsafe.Offsetof(filter{}.n), 24, true}, // filter_amd64.h counts on it
		"childSlot": {unsafe.Sizeof(childSlot{}), 16, false},
	} {
		if s.pointers && strconv.IntSize == 32 { // they are smaller, and nothing counts on it
			continue
		}
		if s.have != s.want {
			t.Errorf("%s has %d bytes, want %d", name, s.have, s.want)
		}
	}
}
