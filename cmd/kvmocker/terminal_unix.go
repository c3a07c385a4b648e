//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// takeTerminal makes this process the one that ctrl-c of the terminal reaches,
// and returns what undoes it. Started by make it would share the signal with
// make, which then reports a failure however orderly the end was.
func takeTerminal() (giveBack func()) {
	nothing := func() {}
	terminal := int(os.Stdin.Fd())
	before, err := unix.IoctlGetInt(terminal, unix.TIOCGPGRP)
	if err != nil || before != unix.Getpgrp() || before == os.Getpid() {
		return nothing // no terminal, in the background, or a shell has done it
	}
	if unix.Setpgid(0, 0) != nil {
		return nothing
	}
	// Whoever changes this from the background is stopped by SIGTTOU otherwise,
	// and at the end we are in the background.
	signal.Ignore(syscall.SIGTTOU)
	if unix.IoctlSetPointerInt(terminal, unix.TIOCSPGRP, os.Getpid()) != nil {
		return nothing
	}
	return func() { _ = unix.IoctlSetPointerInt(terminal, unix.TIOCSPGRP, before) }
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil
}
