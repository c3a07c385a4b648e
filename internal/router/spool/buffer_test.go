package spool

import "testing"

func TestBuffersHaveRoom(t *testing.T) {
	for size := int64(1); size <= mostBuffer; size += 1 + size/50 {
		for _, n := range []int64{size, bufferFor(size)} {
			b := getBuffer(n)
			class, room := bufferClass(n)
			if int64(cap(*b)) != room || room < n || n > leastBuffer && room-n >= (room+4)/5 || bufferFor(room) != room || class >= len(buffers) {
				t.Fatalf("%d bytes: %d of class %d, %d", n, cap(*b), class, room)
			}
			putBuffer(b)
		}
	}
	if n := bufferFor(mostBuffer + 1); n != mostBuffer+1 || int64(cap(*getBuffer(n))) != n {
		t.Errorf("a large one of %d bytes", n)
	}
}
