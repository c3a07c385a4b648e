package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// One worker's heartbeat names 20,000 ranks, and nobody answers for them. Others are
// recovered beside it; of a worker that is registered little more than the registered ranks are followed.
func TestAHeartbeatOfVeryManyRanks(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--data-dir", dir, "--registry-beat=200ms")
	p.ready()
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	nc := join(t, dir).Conn()
	space := event.Space{Model: "m", BlockSize: 16}
	open := func(cfg publish.Config) *publish.Publisher {
		t.Helper()
		cfg.Conn, cfg.Space, cfg.Log = nc, space, slog.New(slog.DiscardHandler)
		pub, err := publish.Open(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		return pub
	}
	registered := open(publish.Config{Worker: 2, Registration: &publish.Registration{Worker: registry.Worker{Ranks: []uint32{0, 1}}}})
	if err := registered.Stored(ctx, 1, event.Device, publish.Root(), []uint64{1}, []uint64{1}); err != nil {
		t.Error(err)
	}
	p.workerIs(2, "live false true of 0")

	for _, worker := range []uint64{1, 2} {
		if worker == 1 { // it takes questions, and never answers
			if _, err := nc.SubscribeSync(stream.RecoverSubject("default", space, worker)); err != nil {
				t.Fatal(err)
			}
		}
		hostile := event.Batch{Space: space, Worker: worker, Incarnation: 9}
		for n := range uint32(20_000) {
			hostile.Last = append(hostile.Last, event.Position{DPRank: 2 + n, ID: 5})
		}
		if err := nc.Publish(stream.LiveSubject("default", space, worker), event.AppendHeartbeat(nil, &hostile)); err != nil {
			t.Fatal(err)
		}
	}
	refused := 2*20_000 - 1024 - 64
	waittest.Until(t, func() error {
		line := fmt.Sprintf("kvatlas_ingest_malformed_total{reason=\"too_many_ranks\"} %d\n", refused)
		if _, all, _ := p.ask("GET", "/metrics", ""); !strings.Contains(all, line) {
			return fmt.Errorf("the metrics lack %s", line)
		}
		return nil
	})
	begun := time.Now()
	others := open(publish.Config{Worker: 3, Transport: publish.CoreNATS, Heartbeat: 100 * time.Millisecond})
	if err := others.Stored(ctx, 0, event.Device, publish.Root(), []uint64{3}, []uint64{3}); err != nil {
		t.Fatal(err)
	}
	p.answers("POST", "/v1/find_matches", `{"model":"m","hashes":[3]}`, 200, `"workers":[{"worker_id":"3",`)
	waittest.Until(t, func() error {
		for _, r := range p.streams() {
			if r.worker == "3" && r.state == "following" {
				return nil
			}
		}
		return fmt.Errorf("the worker beside them is not recovered: %+v", p.streams())
	})
	t.Logf("recovered after %v", time.Since(begun))
	for _, pub := range []*publish.Publisher{registered, others} {
		if err := pub.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}

type streamOf struct{ worker, state, err string }

// streams returns how the reading of every rank's events stands.
func (p *process) streams() (list []streamOf) {
	p.t.Helper()
	var m struct {
		Spaces []struct {
			Workers []struct {
				ID    string `json:"worker_id"`
				Ranks []struct {
					Stream *struct {
						State     string
						LastError string `json:"last_error"`
					}
				}
			}
		}
	}
	if _, data, err := p.ask("GET", "/v1/workers", ""); err != nil || json.Unmarshal([]byte(data), &m) != nil {
		return []streamOf{{err: data}}
	}
	for _, sp := range m.Spaces {
		for _, w := range sp.Workers {
			for _, r := range w.Ranks {
				if r.Stream != nil {
					list = append(list, streamOf{w.ID, r.Stream.State, r.Stream.LastError})
				}
			}
		}
	}
	return list
}
