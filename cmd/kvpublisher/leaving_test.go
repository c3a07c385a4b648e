package main

import (
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/enginetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/registry"
)

// registered returns the workers that the registry has and that have not left.
func (f *fleet) registered() []registry.Entry {
	f.t.Helper()
	b, err := registry.OpenBucket(f.t.Context(), f.broker.Conn(), "default", registry.BucketConfig{})
	if err != nil {
		f.t.Fatal(err)
	}
	c, err := b.Read(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return c.Workers
}

// A sidecar that is stopped while its engine runs will be back, and its lease goes on meanwhile. With its engine gone,
// as where their pod is deleted, the worker leaves at once.
func TestWithItsEngineTheWorkerLeaves(t *testing.T) {
	f, m := newFleet(t), enginetest.NewMock(t, 5, 2, 0)
	p := f.start(args(m)...)
	p.ready()
	m.Publish(40)
	equal(f, m, 0)
	p.stop()
	if n := len(f.registered()); n != 1 {
		t.Errorf("%d workers while the engine runs", n)
	}
	p = f.start(args(m)...)
	p.ready()
	m.Stop()
	waittest.For(t, "the engine is seen to be gone", func() bool {
		all := f.registered()
		return len(all) == 1 && len(all[0].Seen) == 2 && !slices.ContainsFunc(all[0].Seen, func(s registry.Seen) bool { return s.Error == "" })
	})
	p.stop()
	if n := len(f.registered()); n != 0 {
		t.Errorf("%d workers, and the engine and its sidecar are gone", n)
	}
	m.Restart()
	p = f.start(args(m)...)
	p.ready()
	m.Publish(40)
	equal(f, m, 0)
	if n := len(f.registered()); n != 1 {
		t.Errorf("%d workers once both are back", n)
	}
}
