package enginetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
	"github.com/kvatlas/kvatlas/internal/testing/porttest"
)

// Mock is a mock engine of some ranks, which loses live messages on purpose.
type Mock struct {
	Ranks   int
	Buffer  int // batches that replays have; 0: 10,000
	History []*History
	// Lossless ends the losses.
	Lossless atomic.Bool

	t     testing.TB
	seed  uint64
	pubs  []*enginepub.Publisher
	ports [3]int // of rank 0's endpoint, replay and snapshots
	whole bool   // it gives snapshots
	mu    sync.Mutex
	said  [][][]byte // guarded by mu: payloads of each rank since the process began
}

// NewMock returns a mock engine that runs.
func NewMock(t testing.TB, seed uint64, ranks, buffer int) *Mock {
	t.Helper()
	return newMock(t, seed, ranks, buffer, false)
}

// NewMockOfSnapshots returns one that gives snapshots, too, of all that a process said.
func NewMockOfSnapshots(t testing.TB, seed uint64, ranks, buffer int) *Mock {
	t.Helper()
	return newMock(t, seed, ranks, buffer, true)
}

func newMock(t testing.TB, seed uint64, ranks, buffer int, snapshots bool) *Mock {
	t.Helper()
	m := &Mock{Ranks: ranks, Buffer: buffer, t: t, seed: seed, whole: snapshots, said: make([][][]byte, ranks),
		History: make([]*History, ranks), pubs: make([]*enginepub.Publisher, ranks)}
	var err error
	for range 100 { // somebody else may take the ports meanwhile
		m.ports[0] = porttest.Free(t, 3*ranks)
		m.ports[1], m.ports[2] = m.ports[0]+ranks, m.ports[0]+2*ranks
		m.seed = seed
		if err = m.start(); err == nil {
			return m
		}
	}
	t.Fatal(err)
	return nil
}

// Restart starts the engine's process, in the place of the one before.
func (m *Mock) Restart() {
	m.t.Helper()
	if err := m.start(); err != nil {
		m.t.Fatal(err)
	}
}

// Stop ends the engine's process, until Restart.
func (m *Mock) Stop() {
	for _, p := range m.pubs {
		_ = p.Close() // as killed
	}
}

func (m *Mock) start() error {
	m.seed++
	rnd := rand.New(rand.NewPCG(m.seed, 2))
	for i := range m.pubs {
		if m.pubs[i] != nil {
			_ = m.pubs[i].Close() // as killed
		}
		m.mu.Lock()
		m.said[i] = nil
		m.mu.Unlock()
		cfg := enginepub.Config{
			Endpoint: tcp(m.ports[0] + i), Replay: tcp(m.ports[1] + i), Buffer: m.Buffer, WithTopic: m.seed%2 == 0,
			Lose: func(uint64) bool { return rnd.IntN(10) == 0 && !m.Lossless.Load() },
		}
		if m.whole {
			cfg.Snapshot, cfg.Take = m.Snapshot(i), func(next uint64) ([][]byte, error) {
				m.mu.Lock()
				defer m.mu.Unlock()
				return slices.Clone(m.said[i][:next]), nil
			}
		}
		p, err := enginepub.New(cfg)
		if err != nil {
			return err
		}
		m.t.Cleanup(func() { _ = p.Close() })
		m.pubs[i] = p
		m.History[i] = NewHistory(Releases()[4], uint32(i), m.seed) // one that Payload can write
	}
	return nil
}

// Endpoint returns the endpoint and the replay endpoint of a rank.
func (m *Mock) Endpoint(rank int) (events, replay string) {
	return tcp(m.ports[0] + rank), tcp(m.ports[1] + rank)
}

// Snapshot returns where a rank gives snapshots.
func (m *Mock) Snapshot(rank int) string { return tcp(m.ports[2] + rank) }

// Publish makes each rank publish n more batches.
func (m *Mock) Publish(n int) {
	m.t.Helper()
	for i, h := range m.History {
		batches, err := h.Go(n)
		if err != nil {
			m.t.Fatal(err)
		}
		for _, b := range batches {
			payload, err := b.Payload()
			if err != nil {
				m.t.Fatal(err)
			}
			m.mu.Lock()
			m.said[i] = append(m.said[i], payload)
			m.mu.Unlock()
			m.pubs[i].Publish(payload)
		}
	}
}

// Junk makes a rank publish a batch that nobody can read.
func (m *Mock) Junk(rank int) {
	m.pubs[rank].Publish([]byte("\xc1"))
	m.History[rank].Batches = append(m.History[rank].Batches, Batch{})
}

// HalfJunk makes the rank publish a batch of two events of which only the second,
// that removes nothing it holds, can be read.
func (m *Mock) HalfJunk(rank int) {
	unreadable := mptest.Map{"type", "BlockRemoved", "block_hashes", "all"}
	readable := mptest.Map{"type", "BlockRemoved", "block_hashes", []any{uint64(1) << 40}}
	m.pubs[rank].Publish(mptest.Encode([]any{1.5, []any{unreadable, readable}}))
	m.History[rank].Batches = append(m.History[rank].Batches, Batch{})
}

// NamesAlone makes the rank publish a store of a block by its hash alone, which nobody knows.
func (m *Mock) NamesAlone(rank int) {
	m.pubs[rank].Publish(mptest.Encode([]any{1.5, []any{mptest.Map{"type", "BlockStored", "block_hashes", []any{uint64(1) << 41},
		"parent_block_hash", nil, "token_ids", []any{}, "block_size", BlockSize, "lora_id", nil, "medium", "CPU"}}}))
	m.History[rank].Batches = append(m.History[rank].Batches, Batch{})
}

// Oracle returns what the rank's batches from base on say, of holder 0.
func (m *Mock) Oracle(rank, base int) *core.Oracle {
	o := core.NewOracle()
	for _, b := range m.History[rank].Batches[base:] {
		for i := range b.Events {
			Apply(o, 0, &b.Events[i])
		}
	}
	return o
}

// Stores returns everything that the rank ever stored.
func (m *Mock) Stores(rank int) (evs []event.Event) {
	for _, b := range m.History[rank].Batches {
		for _, ev := range b.Events {
			if ev.Kind == event.Stored {
				evs = append(evs, ev)
			}
		}
	}
	return evs
}

// Incomplete returns what the rank's batches from base on say of holder 0 where
// those before are lost for good, and holder 1 has everything that Stores
// returns.
func (m *Mock) Incomplete(rank, base int) *core.Oracle {
	o := core.NewOracle()
	for _, ev := range m.Stores(rank) {
		o.Store(1, &ev, false)
	}
	incomplete := true
	for _, b := range m.History[rank].Batches[base:] {
		for i := range b.Events {
			ev := &b.Events[i]
			incomplete = incomplete && ev.Kind != event.Cleared
			if incomplete && ev.Kind == event.Stored && ev.HasParent {
				o.Infer(0, 1, ev.Parent)
			}
			Apply(o, 0, ev)
		}
	}
	return o
}

func tcp(port int) string { return fmt.Sprintf("tcp://127.0.0.1:%d", port) }
