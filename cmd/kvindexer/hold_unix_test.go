//go:build unix

package main

import "syscall"

// hold stops the process where it stands, and resume lets it go on.
func (p *process) hold()   { p.signal(syscall.SIGSTOP) }
func (p *process) resume() { p.signal(syscall.SIGCONT) }
