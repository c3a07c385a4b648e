package keeper

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// attack is a history of what operators, backups and crashes do to a server and
// to snapshots, while workers live, and restart.
type attack struct {
	*restorable
	rng     *rand.Rand
	running *node
	started int
	backup  func()
	old     []store.Manifest // as they were
	files   map[string][]byte
	log     []string
}

// run starts a replica that takes snapshots all the time.
func (a *attack) run() *node {
	a.t.Helper()
	a.started++
	return a.start(fmt.Sprint("replica", a.started), func(c *Config) {
		c.Threshold, c.Lease, c.Keep, c.Metrics = 10, 200*time.Millisecond, 2+a.rng.IntN(3), metrics.NewSet()
	})
}

// right checks that a replica is ready and has what the oracle has.
func (a *attack) right(n *node) {
	a.t.Helper()
	defer func() {
		if a.t.Failed() {
			a.t.Logf("after %q", a.log)
		}
	}()
	n.equal()
	waittest.Until(a.t, n.in.Ready)
}

// step does one thing.
func (a *attack) step() {
	a.t.Helper()
	s := a.shelf()
	names, err := s.Names(deadline(a.t))
	if err != nil {
		a.t.Fatal(err)
	}
	m, _, err := s.Manifest(deadline(a.t))
	if err != nil {
		m = store.Manifest{}
	}
	pick := func() string { return names[a.rng.IntN(len(names))] }
	for _, n := range names {
		f, err := s.Open(deadline(a.t), n)
		if err != nil {
			continue // a replica has swept it, or it is spoilt
		}
		if data, err := io.ReadAll(f); err == nil && a.files[n] == nil {
			a.files[n] = data
		}
		_ = f.Close()
	}
	a.old = append(a.old, m)
	names = slices.DeleteFunc(names, func(n string) bool { return a.files[n] == nil })
	what := a.rng.IntN(12)
	a.log = append(a.log, fmt.Sprint(what))
	switch {
	case what == 0:
		a.running.crash()
		a.running = a.run()
	case what == 1:
		a.running.stop()
		a.running = a.run()
	case what == 2 && len(names) > 1:
		_ = s.put(pick(), a.files[pick()]) // replicas may be faster than a hand
	case what == 3 && len(names) > 0:
		n := pick()
		_ = s.put(n, a.files[n][:a.rng.IntN(len(a.files[n])+1)])
	case what == 4: // an older manifest, or none
		was := a.old[a.rng.IntN(len(a.old))]
		if a.rng.IntN(3) == 0 {
			was = store.Manifest{}
		}
		_ = s.replace(func(m *store.Manifest) { *m = was })
	case what == 5 && len(a.files) > 0: // a file that was deleted, or is another by now
		all := slices.Sorted(maps.Keys(a.files))
		n := all[a.rng.IntN(len(all))]
		_ = s.put(n, a.files[n])
	case what == 6:
		a.stopped(func() { a.backup = natstest.BackUp(a.t, a.data) })
	case what <= 8 && a.backup != nil:
		a.stopped(a.backup)
	case what == 9:
		str, err := a.js.Stream(deadline(a.t), stream.Name("default", testSpace))
		if err == nil {
			err = str.Purge(deadline(a.t), jetstream.WithPurgeKeep(uint64(a.rng.IntN(20))))
		}
		if err != nil {
			a.t.Fatal(err)
		}
	case what == 10:
		if err := a.js.DeleteStream(deadline(a.t), stream.Name("default", testSpace)); err != nil {
			a.t.Fatal(err)
		}
	case what == 11: // an engine restarts
		id := a.rng.IntN(len(a.pubs))
		a.kill(a.pubs[id])
		a.pubs[id] = a.publisher(id)
		a.mu.Lock()
		a.oracle.Clear(core.Holder(id), 0, true)
		a.held[id] = nil
		a.mu.Unlock()
	}
	a.publish(10 + a.rng.IntN(40))
}

// Whatever is done to the server, the stream, the manifest and the snapshots, a
// replica that runs and one that starts are ready and equal to the oracle, as
// long as the workers live: at once, and not by running in circles.
func TestHistoriesOfBackupsAndHands(t *testing.T) {
	racetest.Without(t, "it waits for seconds, and other tests have the same goroutines")
	eachStore(t, func(t *testing.T, dir string) {
		seeds := coretest.Seeds(1)
		for _, seed := range seeds[:min(len(seeds), 60)] { // each takes seconds
			t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
				at := dir
				if at != "" {
					at = t.TempDir()
				}
				a := &attack{restorable: newRestorable(t, at), rng: rand.New(rand.NewPCG(seed, 5)), files: map[string][]byte{}}
				a.running = a.run()
				a.publish(60)
				a.right(a.running)
				for range 10 {
					a.step()
					a.right(a.running)
					next := a.run()
					a.right(next)
					void, reloaded := next.count("kvatlas_ingest_void_positions_total"), next.count(`kvatlas_ingest_reader_resets_total{reason="reloaded"}`)
					if void > 1 || reloaded > 2 {
						t.Errorf("after %q a start found its position void %d times and took up %d snapshots", a.log, void, reloaded)
					}
					next.crash()
				}
			})
		}
	})
}
