package main

import "syscall"

// ownGroup keeps ctrl-c of the terminal from a child, and ends the child with
// this process even if that had no time to stop it.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
