package ingest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// What happens to the server, other than to be killed, restarted and restored.

// A consumer that an administrator deletes is made again where reading was.
func TestADeletedConsumerIsMadeAgain(t *testing.T) {
	b := newRolledBack(t)
	r := b.open("one", nil, nil)
	b.publish(50)
	b.equal(r)
	if err := b.js.DeleteConsumer(deadline(t), stream.Name("default", testSpace), "replica_one"); err != nil {
		t.Fatal(err)
	}
	b.publish(50)
	b.equal(r)
	if r.counter(`kvatlas_ingest_reader_resets_total{reason="consumer_gone"}`) == 0 {
		t.Error("nobody noticed")
	}
	if n := r.counter("kvatlas_ingest_void_positions_total"); n != 0 {
		t.Errorf("%d positions were void", n)
	}
}

// Of two processes that have one replica's name one says so and reads by another: they would take the consumer
// from each other for ever.
func TestTwoReplicasOfOneName(t *testing.T) {
	b := newRolledBack(t)
	b.publish(50)
	both := []*replica{b.open("one", nil, nil), b.open("one", nil, nil)}
	reset := func(why string) (n uint64) {
		for _, r := range both {
			n += r.counter(fmt.Sprintf(`kvatlas_ingest_reader_resets_total{reason=%q}`, why))
		}
		return n
	}
	waittest.Until(t, func() error {
		if reset("namesake") == 0 {
			return errors.New("nobody notices")
		}
		return nil
	})
	for range 5 {
		b.publish(50)
		for _, r := range both {
			b.equal(r)
		}
	}
	if named, gone := reset("namesake"), reset("consumer_gone"); named > 2 || gone > 3 {
		t.Errorf("a namesake was noticed %d times, and the consumer taken %d times", named, gone)
	}
}

// damage changes the files of messages below the data directory, and returns how
// many there were.
func damage(t *testing.T, dir string, change func(b []byte) []byte) (files int) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(dir, "jetstream"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".blk" {
			return err
		}
		data, err := os.ReadFile(path) //nolint:gosec // the test's own directory
		if err != nil {
			return err
		}
		files++
		return os.WriteFile(path, change(data), 0o600) //nolint:gosec // the same
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A disk gives back the server's messages with a bit flipped, or not to their
// end: what the server loses by it is got from the publishers, by a replica that
// had read it and by one that had not.
func TestDamagedMessageFiles(t *testing.T) {
	for name, change := range map[string]func([]byte) []byte{
		"flipped": func(b []byte) []byte {
			for i := range 8 { // one of them might be a heartbeat's
				b[len(b)*(2*i+1)/16] ^= 1
			}
			return b
		},
		"truncated": func(b []byte) []byte { return b[:len(b)/2] },
	} {
		t.Run(name, func(t *testing.T) {
			b := newRolledBack(t)
			r := b.open("one", nil, nil)
			b.publish(300)
			b.equal(r)
			b.stopped(func() {
				if damage(t, b.dir, change) == 0 {
					t.Fatal("no files of messages")
				}
				// As a crash leaves it: a server that was stopped in order does not
				// look for damage until it reads the messages.
				if err := os.WriteFile(filepath.Join(b.dir, "running"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			})
			b.publish(50)
			b.equal(r)
			late := b.open("late", nil, nil)
			waittest.For(t, "a late replica equals the oracle", func() bool { return digest(t, late.set) == b.truth.digest() })
			if late.counter("kvatlas_ingest_missed_events_total") == 0 {
				t.Error("the server has lost nothing")
			}
		})
	}
}
