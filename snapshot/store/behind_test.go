package store

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/broker"
)

// behind has what the client reads of a stream directly, from whichever server, answered by one that has
// nothing yet for the first requests, as many as it says.
func behind(t *testing.T, nc *nats.Conn, stream string, nothing int64) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(deadline(t), stream)
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	cfg.AllowDirect = false // of those who have looked at it the client does not know
	if _, err := js.UpdateStream(deadline(t), cfg); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	prefix := "$JS.API.DIRECT.GET." + stream + "."
	sub, err := nc.Subscribe(prefix+">", func(m *nats.Msg) {
		answer := nats.NewMsg(m.Reply)
		if asked.Add(1) <= nothing {
			answer.Header.Set("Status", "404")
			_ = m.RespondMsg(answer)
			return
		}
		request, _ := json.Marshal(map[string]string{"last_by_subj": strings.TrimPrefix(m.Subject, prefix)})
		r, err := nc.Request("$JS.API.STREAM.MSG.GET."+stream, request, time.Minute)
		if err != nil {
			t.Error(err)
			return
		}
		var got struct {
			Message struct {
				Subject, Hdrs, Data string
				Seq                 uint64
				Time                time.Time
			}
		}
		if err := json.Unmarshal(r.Data, &got); err != nil {
			t.Error(err)
			return
		}
		answer.Data, _ = base64.StdEncoding.DecodeString(got.Message.Data)
		answer.Header.Set(jetstream.StreamHeader, stream)
		answer.Header.Set(jetstream.SubjectHeader, got.Message.Subject)
		answer.Header.Set(jetstream.SequenceHeader, strconv.FormatUint(got.Message.Seq, 10))
		answer.Header.Set(jetstream.TimeStampHeaer, got.Message.Time.Format(time.RFC3339Nano))
		_ = m.RespondMsg(answer)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
}

// blind lists what a server has that has nothing yet.
type blind struct{ jetstream.ObjectStore }

func (blind) List(context.Context, ...jetstream.ListObjectsOpt) ([]*jetstream.ObjectInfo, error) {
	return nil, jetstream.ErrNoObjectsFound
}

// In a cluster a server that is behind answers for what another one has acknowledged. A snapshot is read
// back all the same, and the manifest that counts is the leader's.
func TestAServerThatIsBehind(t *testing.T) {
	br, err := broker.Open(deadline(t), broker.Config{URL: broker.Embedded, DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = br.Close() })
	ctx := deadline(t)
	s, err := OpenBucket(ctx, br.Conn(), "default", testStream, BucketConfig{Spool: t.TempDir(), Part: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	behind(t, br.Conn(), "OBJ_"+bucketName(testStream), 5)
	behind(t, br.Conn(), "KV_"+KVName("default"), 1<<40)
	fence, err := Claim(ctx, s, "one", nil)
	if err != nil {
		t.Fatal(err)
	}
	name, data := Name(1, fence), content(1, 250_000)
	if err := put(ctx, s, name, data); err != nil {
		t.Fatal(err)
	}
	if got, err := get(ctx, s, name); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes are read back, %v", len(got), err)
	}
	if _, err := Publish(ctx, s, Entry{Name: name, Fence: fence}, 3); err != nil {
		t.Fatal(err)
	}
	s.os = blind{s.os}
	if err := Sweep(ctx, s, fence); err != nil {
		t.Error(err)
	}
	if names, err := s.Names(ctx); err != nil || !slices.Equal(names, []string{name}) {
		t.Errorf("it lists %q, %v", names, err)
	}
	if m, _, err := s.Manifest(ctx); err != nil || len(m.Snapshots) != 1 || m.Snapshots[0].Name != name {
		t.Errorf("the manifest has %+v, %v", m.Snapshots, err)
	}
	if got, err := get(ctx, s, name); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the newest snapshot was swept away: %d bytes, %v", len(got), err)
	}
}
