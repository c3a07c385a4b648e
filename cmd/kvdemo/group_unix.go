//go:build unix && !linux

package main

import "syscall"

// ownGroup keeps ctrl-c of the terminal from a child.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
