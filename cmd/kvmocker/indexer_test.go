package main

import "testing"

func TestList(t *testing.T) {
	f := func(want string, tokens ...uint32) {
		t.Helper()
		if got := list(tokens); got != want {
			t.Errorf("%v: got %s, want %s", tokens, got, want)
		}
	}
	f(`'$(seq -s, 5 8)'`, 5, 6, 7, 8)
	f(`5,7,9`, 5, 7, 9)
	f(`4294967295,0`, 1<<32-1, 0)
}
