package core

import (
	"testing"
	"unsafe"
)

func TestLayout(t *testing.T) {
	for name, s := range map[string]struct{ have, want uintptr }{
		"chunk":     {unsafe.Sizeof(chunk{}), 64},
		"body":      {unsafe.Sizeof(body{}), bodyBytes},
		"aim":       {unsafe.Sizeof(aim{}), 24}, // prefetch_amd64.s counts on it
		"childSlot": {unsafe.Sizeof(childSlot{}), 16},
	} {
		if s.have != s.want {
			t.Errorf("%s has %d bytes, want %d", name, s.have, s.want)
		}
	}
}
