package console

import (
	"errors"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/program/edge"
)

// A stream that was caught up with is not shown as that while NATS is gone.
func TestDisconnected(t *testing.T) {
	s := &ingest.StreamStatus{Stream: "s", Position: 7, Last: 7, CaughtUp: true}
	if one := streamShown(s, true); !one.CaughtUp || one.Error != nil {
		t.Errorf("connected: %+v", one)
	}
	if one := streamShown(s, false); one.CaughtUp || one.Error == nil {
		t.Errorf("not connected: %+v", one)
	}
}

// With NATS gone what is read of it is as of when it was heard last.
func TestHeardLast(t *testing.T) {
	at := time.UnixMilli(1_000_000)
	heard := []ingest.StreamStatus{{Heard: at}, {Heard: at.Add(time.Second)}}
	silent := []ingest.StreamStatus{{Heard: at, Silent: errors.New("silent")}}
	for _, c := range []struct {
		streams   []ingest.StreamStatus
		connected bool
		want      time.Time
	}{
		{heard, true, time.Time{}}, {heard, false, at.Add(time.Second)}, {silent, true, at}, {nil, false, time.Time{}},
	} {
		if got := heardLast(c.streams, c.connected); !got.Equal(c.want) {
			t.Errorf("%+v, connected %v: %v, want %v", c.streams, c.connected, got, c.want)
		}
	}
}

// A replica is listed with what it writes, and for tenants none is.
func TestReplicas(t *testing.T) {
	f := newFixture(t, nil)
	snapshots := []snapshotOf{{Stream: "a", Writer: some("other")}, {Stream: "b", Writer: some("test")}, {Stream: "c", Writer: some("other")}, {Stream: "d"}}
	got := f.replicas(&request{Ask: &edge.Ask{}}, snapshots)
	if len(got) != 2 || got[0].Replica != "test" || !got[0].This || len(got[0].Writes) != 1 || got[1].Replica != "other" || got[1].This || got[1].Beat != nil || len(got[1].Writes) != 2 {
		t.Errorf("%+v", got)
	}
	tenant := "acme"
	if got = f.replicas(&request{Ask: &edge.Ask{Tenant: &tenant}}, snapshots); len(got) != 0 {
		t.Errorf("a tenant sees %+v", got)
	}
}
