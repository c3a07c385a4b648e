package stream

import (
	"context"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A key that another writes at the moment is a conflict, also by the code of streams with several copies.
func TestConflicts(t *testing.T) {
	js := startServer(t)
	kv, err := OpenKV(testContext(t), js, jetstream.KeyValueConfig{Bucket: "b", Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.PutString(testContext(t), "deleted", "x"); err != nil {
		t.Fatal(err)
	}
	if err := kv.Delete(testContext(t), "deleted"); err != nil {
		t.Fatal(err)
	}
	writes := map[string]func(ctx context.Context) error{
		"update": func(ctx context.Context) error { _, err := kv.Update(ctx, "key", nil, 1); return err },
		"delete": func(ctx context.Context) error { return kv.Delete(ctx, "key", jetstream.LastRevision(1)) },
		"create": func(ctx context.Context) error { _, err := kv.Create(ctx, "key", nil); return err },
		"again":  func(ctx context.Context) error { _, err := kv.Create(ctx, "deleted", nil); return err },
	}

	// In the place of the stream somebody answers as it does.
	s, err := js.Stream(testContext(t), "KV_b")
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	cfg.Subjects = []string{"elsewhere"}
	if _, err := js.UpdateStream(testContext(t), cfg); err != nil {
		t.Fatal(err)
	}
	for code, conflict := range map[jetstream.ErrorCode]bool{
		jetstream.JSErrCodeStreamWrongLastSequence: true, jetstream.JSErrCodeStreamWrongLastSequenceConstant: true, storeFailed: false,
	} {
		sub, err := js.Conn().Subscribe("$KV.b.>", func(m *nats.Msg) {
			_ = m.Respond(fmt.Appendf(nil, `{"error":{"code":400,"err_code":%d,"description":"no"}}`, code))
		})
		if err != nil {
			t.Fatal(err)
		}
		for name, write := range writes {
			if err := write(testContext(t)); err == nil || IsConflict(err) != conflict {
				t.Errorf("%s, code %d: a conflict is %v, %v", name, code, IsConflict(err), err)
			}
		}
		if err := sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	}
}
