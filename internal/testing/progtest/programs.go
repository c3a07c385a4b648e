package progtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// Programs are programs of this module, built when they are first asked for.
type Programs struct {
	Root     string   // the module's folder, from the test's own
	Packages []string // such as ./cmd/kvindexer

	mu   sync.Mutex
	done bool
	dir  string
	own  bool // the folder is to be removed
	err  error
}

// Dir returns the absolute path of the folder that the programs are in.
func (p *Programs) Dir() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.done {
		p.err = p.build()
		p.done = true
	}
	return p.dir, p.err
}

func (p *Programs) build() error {
	if p.dir = os.Getenv("KVATLAS_TEST_PROGRAMS"); p.dir == "" {
		dir, err := os.MkdirTemp("", "kvatlas-programs-")
		if err != nil {
			return fmt.Errorf("make a folder for the programs: %w", err)
		}
		p.dir, p.own = dir, true
	}
	// As make test builds them, or they would be linked again: without cgo, as the releases are.
	args := append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", p.dir + string(filepath.Separator)}, p.Packages...)
	cmd := exec.Command("go", args...) //nolint:gosec,noctx // our own programs; it ends with the build
	cmd.Dir = p.Root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
}

// Close removes the folder where it is not shared. It may be called without Dir.
func (p *Programs) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.own {
		_ = os.RemoveAll(p.dir) // among the system's temporary files
	}
}

// NoSleep is a variable for programs under the race detector, which sleep a second before
// they end without it: all that they started has ended by then.
const NoSleep = "GORACE=atexit_sleep_ms=0"
