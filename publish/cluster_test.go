package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

func TestMain(m *testing.M) {
	natstest.RunServer()
	os.Exit(m.Run())
}

// The leader of a stream's three copies is killed. Publishing goes on as soon as there is
// another one, not when the acknowledgements have been waited for, whether messages go alone
// or together; nothing is lost.
func TestPublishingGoesOnWithTheNextLeader(t *testing.T) {
	racetest.Without(t, "three servers do most of it")
	cluster := natstest.StartCluster(t)
	nc, err := nats.Connect(strings.Join(cluster.URLs, ","), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond), nats.DontRandomize())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	sp, together := event.Space{Model: "m", BlockSize: 16}, event.Space{Model: "batches", BlockSize: 16}
	kinds := map[event.Space]StreamConfig{sp: {MaxBytes: 16 << 20, Replicas: 3}, together: {MaxBytes: 16 << 20, Replicas: 3, Batches: true}}
	for sp, kind := range kinds {
		waittest.Until(t, func() error {
			_, err := stream.Ensure(t.Context(), js, "default", sp, kind)
			return err
		})
	}
	leader := func(sp event.Space) string {
		if s, err := js.Stream(t.Context(), stream.Name("default", sp)); err == nil && s.CachedInfo().Cluster != nil {
			return s.CachedInfo().Cluster.Leader
		}
		return ""
	}
	var was string
	waittest.For(t, "the stream has a leader", func() bool { was = leader(sp); return was != "" })
	waittest.Until(t, func() error { // one server leads both
		if is := leader(together); is != was {
			_, err := nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream.Name("default", together), []byte(`{"placement":{"preferred":"`+was+`"}}`), time.Second)
			return errors.Join(fmt.Errorf("%s leads, not %s", is, was), err)
		}
		return nil
	})
	// The publisher stays connected: to another server than the leader.
	conn, err := nats.Connect(cluster.URLs[(cluster.Number(was)+1)%len(cluster.URLs)], nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	const workers, events = 30, 20
	group := &Group{}
	var all []*Publisher
	for id := range uint64(workers + 1) {
		cfg := Config{Conn: conn, Space: together, Worker: id, Group: group, BatchEvents: 1, Log: slog.New(slog.DiscardHandler), Heartbeat: -1}
		if id == workers {
			cfg.Space, cfg.Group = sp, nil
		}
		cfg.Stream = kinds[cfg.Space]
		p, err := Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	next := uint64(0)
	store := func() {
		t.Helper()
		for range events {
			next++
			for _, p := range all {
				if err := p.Stored(t.Context(), 0, event.Device, Root(), []uint64{next}, []uint64{next}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	store()
	if err := all[0].Flush(t.Context()); err != nil { // others' messages are on their way
		t.Fatal(err)
	}
	cluster.Kill(t, cluster.Number(was))
	store()
	flushed := make(chan time.Time, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 2*waittest.Patience) // the stream's election, and then ours
		defer cancel()
		for _, p := range all {
			if err := p.Flush(ctx); err != nil {
				t.Error(err)
			}
		}
		flushed <- time.Now()
	}()
	if js, err = jetstream.New(conn); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	for sp := range kinds {
		waittest.For(t, "the stream takes messages", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, err := js.Publish(ctx, stream.Subject("default", sp, workers+1), []byte("probe"), jetstream.WithRetryAttempts(0))
			return err == nil
		})
	}
	elected := time.Now()
	done := <-flushed
	t.Logf("the stream takes messages %v after the crash, all is published %v later", elected.Sub(killed), done.Sub(elected))
	// How soon is TestPublishingGoesOnSoonAfterAnotherLeads's.
	for _, p := range all {
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ids, batched := idsOf(t, js, stream.Name("default", together))
	alone, _ := idsOf(t, js, stream.Name("default", sp))
	ids[workers] = alone[workers]
	for id := range uint64(workers + 1) {
		if got := slices.Compact(slices.Sorted(slices.Values(ids[id]))); !slices.Equal(got, seq(1, 2*events)) {
			t.Errorf("worker %d: the stream has the events %v", id, got)
		}
	}
	if batched == 0 {
		t.Error("no message went with others")
	}
}

// idsOf returns the ids of each worker's events in a stream, and how many messages came in
// batches. No consumer is made for that: the server may put it where the dead one was.
func idsOf(t *testing.T, js jetstream.JetStream, name string) (ids map[uint64][]uint64, batched int) {
	t.Helper()
	var st jetstream.Stream
	waittest.Until(t, func() (err error) { // the servers may still be without a leader of their own
		st, err = js.Stream(t.Context(), name)
		return err
	})
	ids = make(map[uint64][]uint64)
	for at := uint64(1); at <= st.CachedInfo().State.LastSeq; at++ {
		var m *jetstream.RawStreamMsg
		waittest.Until(t, func() (err error) {
			m, err = st.GetMsg(t.Context(), at)
			return err
		})
		if m.Header.Get(batchID) != "" {
			batched++
		}
		b, err := new(event.Decoder).Decode(m.Data)
		if err != nil {
			continue // the test's own
		}
		for i := range b.Events {
			ids[b.Worker] = append(ids[b.Worker], b.Events[i].ID)
		}
	}
	return ids, batched
}
