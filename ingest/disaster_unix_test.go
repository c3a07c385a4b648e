//go:build unix

package ingest

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// A server that stands still, as one does whose machine swaps or is moved, and
// goes on: publishers notice, and neither they nor the replica lose anything.
func TestAServerThatStandsStill(t *testing.T) {
	dir := t.TempDir()
	server := serverProcess(t, dir)
	waittest.For(t, "the server's address", func() bool {
		_, err := os.Stat(filepath.Join(dir, "address"))
		return err == nil
	})
	n := newNATSBench(t, startBroker(t, dir).Conn())
	r := n.open("one", nil, nil)
	n.fleet(3, 100, func() {
		for range 2 {
			waittest.For(t, "the replica reads", func() bool { return r.position() > 0 })
			failed, pos := n.retries("timeout"), r.position()
			if err := server.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Error(err)
			}
			waittest.For(t, "publishers notice that the server does not answer", func() bool { return n.retries("timeout") > failed })
			if err := server.Process.Signal(syscall.SIGCONT); err != nil {
				t.Error(err)
			}
			waittest.For(t, "the replica goes on", func() bool { return r.position() > pos })
		}
	})
	n.converged(r)
	if n := r.counter("kvatlas_ingest_void_positions_total"); n != 0 {
		t.Errorf("%d positions were void", n)
	}
}
