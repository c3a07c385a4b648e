package stream

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
)

// rolled is a server that is stopped, backed up and restored.
type rolled struct {
	t   *testing.T
	dir string
	b   *broker.Broker
	js  jetstream.JetStream
}

func (r *rolled) start() {
	r.t.Helper()
	var err error
	if r.b, err = broker.Open(testContext(r.t), broker.Config{URL: broker.Embedded, DataDir: r.dir, Log: slog.New(slog.DiscardHandler)}); err != nil {
		r.t.Fatal(err)
	}
	if r.js, err = jetstream.New(r.b.Conn()); err != nil {
		r.t.Fatal(err)
	}
}

// stopped calls f while the server is down.
func (r *rolled) stopped(f func()) {
	r.t.Helper()
	if err := r.b.Close(); err != nil {
		r.t.Fatal(err)
	}
	f()
	r.start()
}

// A position is one of the stream's only if its message is the one that was
// noted, whatever an administrator, a crash or a clock has done to the server.
func TestPositionsThatAreVoid(t *testing.T) {
	r := &rolled{t: t, dir: t.TempDir()}
	r.start()
	defer func() { _ = r.b.Close() }()
	name := Name("ns", testSpace)
	if _, err := Ensure(testContext(t), r.js, "ns", testSpace, small); err != nil {
		t.Fatal(err)
	}
	publish := func(n int) {
		t.Helper()
		for range n {
			if _, err := r.js.Publish(testContext(t), Subject("ns", testSpace, 7), []byte("same content")); err != nil {
				t.Fatal(err)
			}
		}
	}
	look := func() (jetstream.Stream, Info) {
		t.Helper()
		s, info, err := Open(testContext(t), r.js, name)
		if err != nil {
			t.Fatal(err)
		}
		return s, info
	}
	at := func(seq uint64) Position {
		t.Helper()
		s, info := look()
		msg, err := s.GetMsg(testContext(t), seq)
		if err != nil {
			t.Fatal(err)
		}
		return Position{Seq: seq, Created: info.Created, Stored: msg.Time}
	}
	expect := func(name string, p Position, void bool) {
		t.Helper()
		s, info := look()
		why, err := Void(testContext(t), s, &info, p)
		if err != nil || (why != "") != void {
			t.Errorf("%s: %q, %v", name, why, err)
		}
	}
	purge := func(opts ...jetstream.StreamPurgeOpt) {
		t.Helper()
		s, _ := look()
		if err := s.Purge(testContext(t), opts...); err != nil {
			t.Fatal(err)
		}
	}

	publish(3)
	p3 := at(3)
	var restore func()
	r.stopped(func() { restore = natstest.BackUp(t, r.dir) })
	publish(3)
	p5, p6 := at(5), at(6)
	expect("the last message", p6, false)
	expect("one in the middle", p3, false)
	expect("nothing read", Position{Created: time.Unix(1, 0)}, false)
	expect("a time that was not noted", Position{Seq: 5, Created: p5.Created}, true)
	expect("a creation time that was not noted", Position{Seq: 5, Stored: p5.Stored}, false)
	expect("another time", Position{Seq: 5, Created: p5.Created, Stored: p5.Stored.Add(time.Nanosecond)}, true)
	expect("a stream made in the same second", Position{Seq: 5, Created: p5.Created.Add(1), Stored: p5.Stored}, true)
	r.stopped(func() {})
	expect("after a restart", p6, false)

	r.stopped(restore)
	expect("beyond the restored end", p6, true)
	expect("before the backup", p3, false)
	publish(3)
	expect("the restored stream ends at the same sequence, with another message", p6, true)
	publish(1)
	expect("the restored stream has come further", p5, true)
	p7 := at(7)
	s, _ := look()
	if err := s.DeleteMsg(testContext(t), 5); err != nil {
		t.Fatal(err)
	}
	expect("a message that was taken out", p5, true)
	purge(jetstream.WithPurgeSequence(7))
	expect("trimmed beyond", p5, false)
	expect("trimmed up to", p7, false)
	purge()
	expect("purged", p7, false)
	r.stopped(restore)
	expect("purged, then restored", p7, true)

	if err := r.js.DeleteStream(testContext(t), name); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(testContext(t), r.js, "ns", testSpace, small); err != nil {
		t.Fatal(err)
	}
	publish(8)
	expect("made again", p3, true)
}
