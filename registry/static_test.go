package registry

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Without NATS there are the workers of the list, for ever, and no others.
func TestWithoutNATSThereAreTheStaticWorkers(t *testing.T) {
	r, err := Open(t.Context(), Config{Replica: "alone", Beat: time.Millisecond, Static: []Worker{{ID: 7, Model: "m", BlockSize: 16, Transport: NoEvents}}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	sub := r.Subscribe(1)
	if list := r.Snapshot(false); len(list) != 1 || list[0].ID != 7 || list[0].Status() != "live" {
		t.Errorf("%+v", list)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if status, body := r.ServeRegister(ctx, []byte(`{"instance_id":9,"endpoint":"tcp://127.0.0.1:5557","model_name":"m","block_size":16}`)); status != http.StatusServiceUnavailable ||
		!strings.Contains(string(body), "--registry-workers") {
		t.Errorf("a registration is answered with %d %s", status, body)
	}
	if status, body := r.ServeUnregister(ctx, []byte(`{"instance_id":7,"model_name":"m"}`)); status < 400 {
		t.Errorf("what nobody registered over HTTP is unregistered: %d %s", status, body)
	}
	if list := sub.Next(); len(list) != 0 || len(r.Snapshot(true)) != 1 {
		t.Errorf("changes: %+v", list)
	}
}
