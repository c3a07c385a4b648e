package main

import (
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A variable for the demonstration would be an unknown setting to its programs.
func TestChildrenDoNotSeeTheDemonstrationsVariables(t *testing.T) {
	env, err := exec.LookPath("env")
	if err != nil {
		t.Skip("no env to print the environment")
	}
	t.Setenv("KVATLAS_WORKERS", "3")
	t.Setenv("OTHER", "4")
	c, err := startChild(filepath.Dir(env), "env")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(c.stdout)
	if err != nil {
		t.Fatal(err)
	}
	<-c.done
	if err := c.stop(); err != nil || c.err != nil {
		t.Fatal(err, c.err)
	}
	if strings.Contains(string(text), "KVATLAS_") || !strings.Contains(string(text), "OTHER=4\n") {
		t.Errorf("the child sees %s", text)
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
