package natstest

import (
	"os"
	"path/filepath"
	"testing"
)

// BackUp copies what the server of a data directory stores. The server is
// stopped, and at restore, which puts it back, too. As an operator's copy of the
// files does, it keeps what streams and messages say of their times.
func BackUp(t testing.TB, dataDir string) (restore func()) {
	t.Helper()
	stored, kept := filepath.Join(dataDir, "jetstream"), filepath.Join(t.TempDir(), "jetstream")
	replace := func(to, from string) {
		t.Helper()
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	replace(kept, stored)
	return func() { t.Helper(); replace(stored, kept) }
}
