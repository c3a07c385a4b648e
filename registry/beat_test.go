package registry

import (
	"fmt"
	"net/http"
	"testing"
)

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
