//go:build unix

package modelfiles_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kvatlas/kvatlas/internal/modelfiles"
)

// A pipe by the name of a file is refused, and nobody waits for who would write to it.
func TestPipe(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "tokenizer.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := modelfiles.Read(os.DirFS(dir)); err == nil {
		t.Error("a pipe is read")
	}
}
