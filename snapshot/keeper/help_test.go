package keeper

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// spoil changes one byte in the middle of a snapshot.
func spoil(t *testing.T, dir, stream, name string) {
	t.Helper()
	path := filepath.Join(dir, stream, name)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func kvOf(t *testing.T, w *world) jetstream.KeyValue {
	t.Helper()
	kv, err := store.OpenKV(deadline(t), w.js, "default", 1)
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

// One holds the lease; another gets it when it is given back, or was not
// renewed for its whole period.
func TestALease(t *testing.T) {
	w := newWorld(t, "")
	kv := kvOf(t, w)
	make2 := func(name string) *lease {
		return &lease{kv: kv, key: "lease.x", holder: name, period: 300 * time.Millisecond}
	}
	a, b := make2("a"), make2("b")
	take := func(l *lease) (uint64, bool) {
		t.Helper()
		rev, ok, err := l.acquire(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		return rev, ok
	}
	rev, ok := take(a)
	if !ok {
		t.Fatal("a free lease was not given")
	}
	held, release := a.hold(deadline(t), rev)
	if _, ok := take(b); ok && held.Err() == nil {
		t.Fatal("two hold the lease")
	}
	release()
	if rev, ok = take(b); !ok {
		t.Fatal("a lease that was given back was not given")
	}
	// b says nothing: a gets it after the period, and b's work ends.
	waittest.For(t, "the lease passes on", func() bool { _, ok := take(a); return ok })
	held, release = b.hold(deadline(t), rev)
	defer release()
	select {
	case <-held.Done():
	case <-time.After(waittest.Patience):
		t.Fatal("a lost lease does not end the work")
	}
}
