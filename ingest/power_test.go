package ingest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// TestAMachineThatLosesPower kills the server and takes more and more off the end
// of what it had stored, as unsynced writes are lost with a machine's power. What
// the stream has lost was acknowledged: the publishers are asked for it, by the
// replica that had read it, by one that starts with its position, and by one that
// starts with nothing.
func TestAMachineThatLosesPower(t *testing.T) {
	dir := t.TempDir()
	server := serverProcess(t, dir)
	up := func() {
		t.Helper()
		waittest.For(t, "the server's address", func() bool {
			_, err := os.Stat(filepath.Join(dir, "address"))
			return err == nil
		})
	}
	up()
	b := &rolledBack{natsBench: newNATSBench(t, startBroker(t, dir).Conn()), dir: dir}
	for id := range uint64(3) {
		p, e := b.worker(id, nil)
		b.pubs, b.eng = append(b.pubs, p), append(b.eng, e)
	}
	name := stream.Name("default", testSpace)
	living := b.open("living", nil, nil)
	resting := b.open("resting", nil, nil)
	for _, cut := range []int64{30, 5_000, 1 << 40} {
		b.publish(80)
		b.equal(living)
		b.equal(resting)
		resting.Close()
		start := resting.Positions()
		if err := server.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = server.Wait()
		taken := natstest.CutTail(t, dir, name, cut)
		server = serverProcess(t, dir)
		up()
		t.Logf("of %d bytes asked for %d taken: the stream ends at %d", cut, taken, b.info().LastSeq)
		resting = b.open("resting", resting.set, start)
		fresh := b.open("fresh", nil, nil)
		for _, r := range []*replica{living, resting, fresh} {
			b.equal(r)
		}
		b.publish(20)
		for _, r := range []*replica{living, resting, fresh} {
			b.equal(r)
		}
		fresh.Close()
	}
}
