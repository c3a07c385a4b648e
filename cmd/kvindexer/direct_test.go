package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/enginetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// direct waits until the answers for every chain of the engine are the oracle's.
func (p *process) direct(m *enginetest.Mock, base int) {
	p.t.Helper()
	for rank := range m.Ranks {
		want := m.Oracle(rank, base)
		var matches core.Matches
		asked := map[uint64]bool{}
		for _, n := range want.KnownHashes(0) {
			if asked[n.Seq] || n.Seq%4 != 0 { // some of them
				continue
			}
			asked[n.Seq] = true
			query := want.Chain(0, n.Engine)
			var depth uint32
			want.Find(query, &matches)
			matches.Each(event.Device, func(_ core.Holder, d uint32) { depth = d })
			body, err := json.Marshal(map[string]any{"model": "direct", "hashes": query})
			if err != nil {
				p.t.Fatal(err)
			}
			waittest.Until(p.t, func() error {
				status, data, err := p.ask("POST", "/v1/find_matches", string(body))
				if err != nil {
					return err
				}
				have, err := holders(data)
				if got := have[fmt.Sprint("7/", rank)][event.Device]; err != nil || status != 200 || got != depth {
					return fmt.Errorf("rank %d: status %d, error %w: depth %d of %d blocks, want %d", rank, status, err, got, len(query), depth)
				}
				return nil
			})
		}
	}
}

// An engine that is registered over HTTP with its sockets is followed without a
// publisher: over its restarts, its losses, and those of the indexer.
func TestAnEngineIsFollowedDirectly(t *testing.T) {
	dir := t.TempDir()
	args := []string{"--data-dir", dir, "--registry-beat=50ms"}
	p := start(t, args...)
	p.ready()
	m := enginetest.NewMock(t, 9, 2, 200)
	for rank := range m.Ranks {
		events, replay := m.Endpoint(rank)
		p.answers("POST", "/register", fmt.Sprintf(`{"instance_id":7,"endpoint":%q,"replay_endpoint":%q,"block_size":%d,"dp_rank":%d,"model_name":"direct"}`,
			events, replay, enginetest.BlockSize, rank), 201, "")
	}
	m.Publish(150)
	p.direct(m, 0)
	p.answers("GET", "/v1/workers", "", 200, `"status":"active"`)
	m.Restart()
	m.Publish(100)
	p.direct(m, 0)

	// Killed, it has the replay; what that no longer has is shown as missing.
	_ = p.cmd.Process.Kill()
	p.wait()
	p = start(t, args...)
	p.ready()
	p.direct(m, 0)
	_ = p.cmd.Process.Kill()
	p.wait()
	m.Publish(250)
	p = start(t, args...)
	p.ready()
	p.direct(m, 150)
	p.answers("GET", "/v1/workers", "", 200, `"missed_batches":150`)
	p.answers("GET", "/metrics", "", 200, `kvatlas_direct_lost_batches_total{reason="retention"} 300`)

	p.answers("POST", "/unregister", `{"instance_id":7,"model_name":"direct"}`, 200, "")
	waittest.Until(t, func() error {
		if _, data, _ := p.ask("GET", "/metrics", ""); !strings.Contains(data, `kvatlas_index_blocks{model="direct",block_size="64",group="",tier="device"} 0`) {
			return fmt.Errorf("blocks of a worker that left are in the index")
		}
		return nil
	})
}
