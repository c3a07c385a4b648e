package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/bench/mocker"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// In a cluster the server that leads a fleet's stream crashes. The fleet publishes as soon as
// another one leads, without waiting for acknowledgements that nobody will send, and in the end
// the index answers as the oracle does.
func TestALeaderIsKilled(t *testing.T) {
	const requests = 800
	home := t.TempDir()
	record := filepath.Join(home, "events")
	cluster := natstest.StartCluster(t)
	flags := append(load(t, requests), "--workers", "8")

	nc, err := nats.Connect(cluster.URLs[0], nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, func() error { _, err := js.AccountInfo(t.Context()); return err }) // there is a cluster
	in := startIndexer(t, home, "--nats", cluster.URLs[0])
	// All are connected to the first server, which stays.
	fleet := startMocker(t, home, append(flags, "--nats", cluster.URLs[0], "--speed", "25", "--linger", "20ms", "--events-out", record)...)
	name := stream.Name("default", event.Space{Model: "mock", BlockSize: 16})
	led := func() (leader string, last uint64, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s, err := js.Stream(ctx, name)
		if err != nil {
			return "", 0, err
		}
		info := s.CachedInfo()
		if info.Cluster == nil || info.Cluster.Leader == "" || info.Config.Replicas != 3 {
			return "", 0, fmt.Errorf("nobody leads %+v with three copies", info.Cluster)
		}
		return info.Cluster.Leader, info.State.LastSeq, nil
	}
	var was string
	waittest.Until(t, func() error {
		leader, last, err := led()
		if err == nil && cluster.Number(leader) == 0 {
			_, err = nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+name, nil, time.Second)
			if err == nil {
				err = fmt.Errorf("the first server leads")
			}
		}
		if err == nil && last < 100 {
			err = fmt.Errorf("%d messages", last)
		}
		was = leader
		return err
	})
	if p := fleet.progress(func(p mocker.Progress) bool { return p.Requests < requests/4 }); p.Done {
		t.Fatalf("the fleet was done before the leader was killed: %+v", p)
	}
	killed := time.Now()
	cluster.Kill(t, cluster.Number(was))
	var at uint64
	waittest.Until(t, func() error {
		leader, last, err := led()
		if err == nil && leader == was {
			err = fmt.Errorf("%s still leads", was)
		}
		at = last
		return err
	})
	elected := time.Now()
	waittest.Until(t, func() error {
		_, last, err := led()
		if err == nil && last == at {
			err = fmt.Errorf("nothing is published")
		}
		select {
		case <-fleet.done: // all of it was, before the leader's answer was seen here
			return nil
		default:
		}
		return err
	})
	// How soon is shown by publish's tests, by a fake clock.
	t.Logf("another server leads %v after the crash, the fleet publishes %v later", elected.Sub(killed), time.Since(elected))
	last := fleet.progress(func(mocker.Progress) bool { return true })
	fleet.wait(2 * time.Minute)
	in.drained(last.Events)
	v := judged(t, home, append(flags, "--record", record, "--url", in.url)...)
	in.stop()
	t.Logf("%+v", v)
	if v.Prompts != requests || v.Ranks != 8 || int64(v.Events) != last.Events {
		t.Errorf("%d prompts, %d ranks, %d of %d events", v.Prompts, v.Ranks, v.Events, last.Events)
	}
}
