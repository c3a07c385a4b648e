package main

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// overHTTP is a body about a rank of a worker of the fleet; its endpoint is one
// where nobody listens: its events come through the stream.
func (f *fleet) overHTTP(w, rank int) string {
	return fmt.Sprintf(`{"instance_id":%d,"endpoint":"tcp://127.0.0.1:1","model_name":%q,"routing_group":%q,"block_size":%d,"dp_rank":%d}`,
		uint64(w)+1<<63, f.space.Model, f.space.Group, f.space.BlockSize, rank)
}

// leaves has the oracle drop what the ranks hold, and returns what that was.
func (f *fleet) leaves(ranks ...core.Holder) *core.Oracle {
	held := core.NewOracle()
	for _, h := range ranks {
		copyHolder(held, f.oracle, h)
		f.oracle.Clear(h, 0, true)
	}
	return held
}

func (f *fleet) returns(held *core.Oracle, ranks ...core.Holder) {
	for _, h := range ranks {
		copyHolder(f.oracle, held, h)
	}
}

// A worker that was unregistered over HTTP, and a rank that another one has given
// up, stay away although their publishers live on and do not know: on the replica
// that was asked, on one that was stopped meanwhile, and on all that start later,
// from a snapshot from before or after, from a peer, or from the stream alone.
// Their next event brings them back with all that they hold.
func TestWorkersThatAreUnregisteredStayAway(t *testing.T) {
	dir, before, after := t.TempDir(), t.TempDir(), t.TempDir()
	args := []string{"--data-dir", dir, "--registry-beat=50ms"}
	alone := slices.Concat(args, []string{"--no-snapshots"})
	host := start(t, alone...)
	host.ready()
	away := start(t, alone...)
	away.ready()
	b := join(t, dir)
	f := newFleet(t, b, func(c *publish.Config) { c.Heartbeat = 50 * time.Millisecond })
	for rank := range fleetRanks {
		host.answers("POST", "/register", f.overHTTP(0, rank), 201, "ok")
	}
	one := registry.Worker{ID: 1<<63 + 1, Model: f.space.Model, BlockSize: f.space.BlockSize, Group: f.space.Group,
		Ranks: []uint32{0, 1}, Transport: registry.JetStream, Incarnation: f.pubs[1].Incarnation()}
	announced, err := registry.Register(t.Context(), one, registry.AnnounceConfig{Conn: b.Conn(), Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(announced.Stop)
	for _, p := range []*process{host, away} { // registering forgets what another transport left
		p.answers("GET", "/workers", "", 200, `"status":"failed"`)
		waittest.Until(t, func() error {
			if _, data, _ := p.ask("GET", "/workers", ""); strings.Contains(data, "pending") {
				return fmt.Errorf("not all engines were tried: %s", data)
			}
			return nil
		})
	}
	f.publish(300)
	f.compare(host)
	f.compare(away)
	last := func(snaps string) { // snapshot
		p := start(t, slices.Concat(args, []string{"--snapshot-dir", snaps})...)
		p.ready()
		f.compare(p)
		p.signal(syscall.SIGTERM)
		if code := p.wait(); code != 0 {
			t.Fatalf("exit code %d", code)
		}
	}
	last(before)

	away.hold()
	gone := []core.Holder{0, 1, 3} // worker 0 and a rank of worker 1
	one.Ranks = []uint32{0}
	if err := announced.Update(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	host.answers("POST", "/unregister", fmt.Sprintf(`{"instance_id":%d,"model_name":%q}`, uint64(1<<63), f.space.Model), 200, "ok")
	held := f.leaves(gone...)
	f.compare(host)
	away.resume()
	f.compare(away)
	last(after)
	others := []*process{host, away}
	for _, more := range [][]string{{"--snapshot-dir", before}, {"--snapshot-dir", after}, {"--no-snapshots"}, {"--no-snapshots", "--restore-from", host.url}} {
		p := start(t, slices.Concat(args, more)...)
		p.ready()
		f.compare(p)
		others = append(others, p)
	}
	seq := f.sequence(b)
	waittest.For(t, "heartbeats of publishers that do not know", func() bool { return f.sequence(b) > seq+10*fleetWorkers })
	for _, p := range others {
		f.compare(p)
	}

	f.returns(held, gone...)
	for h := range core.Holder(2 * fleetRanks) {
		f.event(h)
	}
	for _, p := range others {
		f.compare(p)
	}
	for _, p := range others[2:] {
		_ = p.cmd.Process.Kill()
	}
	for _, more := range [][]string{{"--snapshot-dir", before}, {"--no-snapshots"}} {
		p := start(t, slices.Concat(args, more, []string{"--gap-wait=1h"})...) // who waits is not ready within the test
		p.ready()
		f.compare(p)
	}
}

// sequence returns the last one of the fleet's stream.
func (f *fleet) sequence(b *broker.Broker) uint64 {
	f.t.Helper()
	js, err := jetstream.New(b.Conn())
	if err != nil {
		f.t.Fatal(err)
	}
	info, err := stream.Get(f.t.Context(), js, stream.Name("default", f.space))
	if err != nil {
		f.t.Fatal(err)
	}
	return info.LastSeq
}

// event has a rank store one block more.
func (f *fleet) event(h core.Holder) {
	f.t.Helper()
	ev := event.Event{Kind: event.Stored, DPRank: h % fleetRanks, Engine: []uint64{f.rand.Uint64()}, Local: []uint64{f.rand.Uint64()}}
	f.chains = append(f.chains, ev.Local)
	f.oracle.Store(h, &ev, false)
	p := f.pubs[h/fleetRanks]
	if err := p.Publish(f.t.Context(), ev); err != nil {
		f.t.Fatal(err)
	}
	if err := p.Flush(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

// A worker that left goes on publishing, and nobody answers for it: what it tells
// since is shown, marked as not all, and keeps no replica waiting for what it told
// before.
func TestEventsOfAWorkerThatLeftKeepNobodyWaiting(t *testing.T) {
	dir, snaps := t.TempDir(), t.TempDir()
	args := []string{"--data-dir", dir, "--registry-beat=50ms"}
	host := start(t, append(args, "--no-snapshots")...)
	host.ready()
	b := join(t, dir)
	f := newFleet(t, b)
	host.answers("POST", "/register", f.overHTTP(0, 0), 201, "ok")
	host.answers("GET", "/workers", "", 200, `"status":"failed"`)
	f.publish(200)
	f.compare(host)
	host.answers("POST", "/unregister", f.overHTTP(0, 0), 200, "ok")
	f.leaves(0, 1)
	f.compare(host)
	p := start(t, slices.Concat(args, []string{"--snapshot-dir", snaps})...)
	p.ready()
	p.signal(syscall.SIGTERM) // with a snapshot
	p.wait()

	js, err := jetstream.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	incarnation, at := f.pubs[0].Incarnation(), f.pubs[0].Positions()[0]
	if err := f.pubs[0].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id := at.ID + 2; id < at.ID+5; id++ { // one is missing, too
		ev := event.Event{Kind: event.Stored, ID: id, DPRank: at.DPRank, Engine: []uint64{id}, Local: []uint64{id}}
		data := event.AppendBatch(nil, &event.Batch{Space: f.space, Worker: 1 << 63, Incarnation: incarnation, Events: []event.Event{ev}})
		if _, err := js.Publish(t.Context(), stream.Subject("default", f.space, 1<<63), data); err != nil {
			t.Fatal(err)
		}
		f.oracle.Store(at.DPRank, &ev, false)
		f.chains = append(f.chains, ev.Local)
	}
	for _, more := range [][]string{{"--snapshot-dir", snaps}, {"--no-snapshots"}} {
		p := start(t, slices.Concat(args, more, []string{"--gap-wait=1h"})...) // who waits is not ready within the test
		p.ready()
		f.compare(p)
		p.answers("GET", "/v1/workers", "", 200, `"incomplete"`)
	}
	f.compare(host)
}
