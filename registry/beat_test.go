package registry

import (
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// slowLink is a connection that brings 4 KiB in ten milliseconds.
type slowLink struct{ net.Conn }

func (c slowLink) Read(p []byte) (int, error) {
	<-time.After(10 * time.Millisecond)
	return c.Conn.Read(p[:min(len(p), 4<<10)])
}

type slowDialer struct{}

func (slowDialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address) //nolint:noctx // a server of this machine
	return slowLink{c}, err
}

// What there is may take longer to read than beats take to be missed: a session that began again
// each time would never get to its end.
func TestALargeBucketIsReadSlowly(t *testing.T) {
	b := startBroker(t, t.TempDir())
	bucket, err := OpenBucket(deadline(t), b.Conn(), "default", BucketConfig{})
	if err != nil {
		t.Fatal(err)
	}
	const ranks = 500
	w := Worker{ID: 7, Model: "m", BlockSize: 16, Transport: ZMQ}
	for rank := range uint32(ranks) {
		w.Ranks, w.Endpoints.Events = []uint32{rank}, map[uint32]string{rank: "tcp://127.0.0.1:5557"}
		if _, _, err := bucket.addHTTP(deadline(t), w); err != nil {
			t.Fatal(err)
		}
	}
	opts := b.Conn().Opts
	opts.Url, opts.InProcessServer, opts.CustomDialer = b.Conn().ConnectedUrl(), nil, slowDialer{}
	slow, err := opts.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(slow.Close)
	r, err := Open(deadline(t), Config{Conn: slow, Replica: "far", Beat: quickBeat, Grace: quickLease, Metrics: metrics.NewSet(), Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	if e, _ := r.Lookup(w.Key()); len(e.Ranks) != ranks {
		t.Errorf("it knows %d of %d ranks", len(e.Ranks), ranks)
	}
}

// A replica is asked to drain or unregister what another one has registered just now, which it
// has not heard of: it does it all the same.
func TestWhatAReplicaHasNotHeardOf(t *testing.T) {
	b := startBroker(t, t.TempDir())
	r := openRegistry(t, b, "one", nil)
	bucket, err := OpenBucket(deadline(t), b.Conn(), "default", BucketConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for rank := range uint32(50) {
		id := uint64(7 + rank%2*rank) // some are new ranks of one worker
		w := Worker{ID: id, Model: "m", BlockSize: 16, Ranks: []uint32{rank}, Transport: ZMQ,
			Endpoints: Endpoints{Events: map[uint32]string{rank: "tcp://127.0.0.1:5557"}}}
		if _, _, err := bucket.addHTTP(deadline(t), w); err != nil {
			t.Fatal(err)
		}
		if rank%4 == 3 {
			post(t, r.ServeDrain, fmt.Sprintf(`{"worker_id":%d}`, id), http.StatusOK, "ok")
		}
		post(t, r.ServeUnregister, fmt.Sprintf(`{"instance_id":%d,"model_name":"m","dp_rank":%d}`, id, rank), http.StatusOK, "ok")
	}
}
