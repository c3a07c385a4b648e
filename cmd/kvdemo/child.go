package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// stopWait is how long a program may take to end in good order.
const stopWait = 15 * time.Second

// child is a program that was started. Its standard error is ours.
type child struct {
	name   string
	cmd    *exec.Cmd
	stdout io.ReadCloser
	done   chan struct{} // closed when it has ended
	err    error         // how; valid when done is closed
}

func startChild(bin, name string, args ...string) (*child, error) {
	c := &child{name: name, cmd: exec.Command(filepath.Join(bin, name), args...), done: make(chan struct{})} //nolint:gosec // our own programs
	// Settings come as flags. What the environment says is for the
	// demonstration: the programs would refuse each other's.
	c.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "KVATLAS_") })
	c.cmd.Stderr = os.Stderr
	// Of its own process group: ctrl-c is for us, who then stop each once.
	c.cmd.SysProcAttr = ownGroup()
	// A pipe of our own: that of StdoutPipe is closed by Wait, perhaps unread.
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c.stdout, c.cmd.Stdout = read, write
	err = c.cmd.Start()
	_ = write.Close() // the child has it
	if err != nil {
		_ = read.Close()
		return nil, fmt.Errorf("start %s, which `make build` puts beside this program: %w", name, err)
	}
	go func() { // ends with the child
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

// ended says that the child ended by itself; done is closed.
func (c *child) ended() error {
	if c.err != nil {
		return fmt.Errorf("%s has ended: %w", c.name, c.err)
	}
	return fmt.Errorf("%s has ended", c.name)
}

// stop asks the child to end and waits; after stopWait it kills it. It is an
// error if the child did not end in good order after having been asked.
func (c *child) stop() error {
	defer c.stdout.Close() //nolint:errcheck // a pipe
	select {
	case <-c.done:
		return nil // ended has said how
	default:
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has just ended
	timer := time.NewTimer(stopWait)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		_ = c.cmd.Process.Kill()
		<-c.done
		return fmt.Errorf("%s did not end within %v and was killed", c.name, stopWait)
	}
	var exit *exec.ExitError
	if errors.As(c.err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() == syscall.SIGTERM {
			return nil // it was asked so soon that it was not listening yet
		}
		return fmt.Errorf("stop %s: %w", c.name, c.err)
	}
	return nil
}
