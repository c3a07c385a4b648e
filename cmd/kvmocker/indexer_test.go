package main

import (
	"slices"
	"testing"
)

func TestBrowser(t *testing.T) {
	for system, want := range map[string][]string{
		"linux": {"xdg-open", "u"}, "darwin": {"open", "u"}, "windows": {"rundll32", "url.dll,FileProtocolHandler", "u"},
	} {
		if got := browser(system, "u"); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", system, got, want)
		}
	}
}

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
