//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// hold stops the process where it stands, and resume lets it go on. Where the system
// shows its threads it waits until each has stopped: until then they answer.
func (p *process) hold() {
	p.signal(syscall.SIGSTOP)
	waittest.Until(p.t, func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		if err != nil {
			return err
		}
		for _, path := range threads {
			stat, err := os.ReadFile(path)
			if err == nil && !bytes.Contains(stat, []byte(") T ")) {
				return fmt.Errorf("a thread is not stopped: %s", stat)
			}
		}
		return nil
	})
}

func (p *process) resume() { p.signal(syscall.SIGCONT) }
