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

// A child that is asked to end before it listens has ended well; one that
// says it failed has not.
func TestStop(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh")
	}
	f := func(script string, good bool) {
		t.Helper()
		c, err := startChild(filepath.Dir(sh), "sh", "-c", script)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.stdout.Read(make([]byte, 8)); err != nil { // it runs
			t.Fatal(err)
		}
		if err := c.stop(); (err == nil) != good {
			t.Errorf("%s: %v", script, err)
		}
	}
	f("echo up; while :; do :; done", true)
	f("trap 'exit 0' TERM; echo up; while :; do :; done", true)
	f("trap 'exit 3' TERM; echo up; while :; do :; done", false)
	f("trap 'kill -KILL $$' TERM; echo up; while :; do :; done", false)
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
