package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
)

// browse opens the address in the browser of whoever is at the machine. It does not wait for
// the browser.
func browse(ctx context.Context, url string) error {
	command := browser(runtime.GOOS, url)
	c := exec.CommandContext(context.WithoutCancel(ctx), command[0], command[1:]...)
	if err := c.Start(); err != nil {
		return fmt.Errorf("open %s: %w", url, err)
	}
	go func() { _ = c.Wait() }() // ends with the command, which may outlive this program
	return nil
}

// browser is the system's command that opens an address.
func browser(system, url string) []string {
	switch system {
	case "darwin":
		return []string{"open", url}
	case "windows":
		return []string{"rundll32", "url.dll,FileProtocolHandler", url}
	}
	return []string{"xdg-open", url}
}
