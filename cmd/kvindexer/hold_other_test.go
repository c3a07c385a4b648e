//go:build !unix

package main

func (p *process) hold()   { p.t.Skip("no process can be stopped and go on here") }
func (p *process) resume() {}
