package registry

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// Who asks something of a bucket that does not answer is told what to look at.
func TestABucketThatDoesNotAnswer(t *testing.T) {
	b := startBroker(t, t.TempDir())
	r := openRegistry(t, b, "one", nil)
	bucket, err := OpenBucket(deadline(t), b.Conn(), "default", BucketConfig{})
	if err != nil {
		t.Fatal(err)
	}
	takesNothing(t, b.Conn())
	for path, serve := range map[string]func(context.Context, []byte) (int, []byte){
		"/register": r.ServeRegister, "/unregister": r.ServeUnregister, "/drain": r.ServeDrain, "/resume": r.ServeResume,
	} {
		status, answer := serve(deadline(t), []byte(`{"worker_id": 7, "model": "m", "block_size": 16, "transport": "none"}`))
		if status != http.StatusServiceUnavailable || !strings.Contains(string(answer), obs.SeeCluster) || strings.Contains(string(answer), jetstream.ErrNoStreamResponse.Error()) {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
	if err := bucket.Drain(deadline(t), 7, "me"); err == nil || !strings.Contains(err.Error(), obs.SeeCluster) {
		t.Error(err)
	}
	past, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	_, read := bucket.Read(past)
	_, replicas := bucket.Replicas(past)
	_, opened := OpenBucket(past, b.Conn(), "default", BucketConfig{})
	for name, err := range map[string]error{"Read": read, "Replicas": replicas, "OpenBucket": opened, "Remove": bucket.Remove(past, 7, false), "Resume": bucket.Resume(past, 7)} {
		if err == nil || !strings.Contains(err.Error(), obs.SeeCluster) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
