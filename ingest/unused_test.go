package ingest

import (
	"errors"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// A stream that is empty and brings no heartbeats is deleted where that is set, and one that
// is gone, deleted by whomever, is neither shown nor waited for. It is read on as soon as
// somebody publishes again.
func TestStreamsThatNobodyPublishesInto(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	set, _ := newIndex(t, 2)
	r := &replica{set: set, metrics: metrics.NewSet(), asked: &asked{}}
	cfg := n.config("one", r, nil)
	cfg.DeleteStream, cfg.ForgetStream = 2*time.Second, 200*time.Millisecond
	in, err := Open(deadline(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	r.Ingest = in
	name := stream.Name("default", testSpace)
	purge := func() {
		t.Helper()
		s, err := n.js.Stream(deadline(t), name)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Purge(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	gone := func() bool {
		_, err := n.js.Stream(deadline(t), name)
		return errors.Is(err, jetstream.ErrStreamNotFound)
	}

	p, e := n.worker(1, nil)
	n.run(p, e, 200)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	n.converged(r)
	for begun := time.Now(); time.Since(begun) < cfg.DeleteStream+time.Second; { // heartbeats keep it
		purge()
		if gone() {
			t.Fatal("the stream of a publisher that lives is deleted")
		}
	}
	if err := p.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	purge()
	waittest.For(t, "the stream is deleted", gone)
	waittest.For(t, "it is not counted any more", func() bool { return len(in.Streams()) == 0 })
	if err := in.Ready(); err != nil {
		t.Errorf("nothing to read, and not ready: %v", err)
	}

	p, e = n.worker(2, nil)
	n.run(p, e, 200)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	waittest.For(t, "the stream is read again", func() bool {
		return len(in.Streams()) == 1 && in.Ready() == nil && digest(t, set) == n.truth.digest()
	})

	// So it is with one that somebody else deletes.
	if err := p.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := n.js.DeleteStream(deadline(t), name); err != nil && !gone() {
		t.Fatal(err)
	}
	waittest.For(t, "it is not counted either", func() bool { return len(in.Streams()) == 0 })
}

// What counts is the time in which somebody looked at this very stream: neither one that was
// made anew with the same number of messages nor a return from an outage, which publishers
// had too, begins with what was seen before.
func TestOnlyLookingAtOneStreamCounts(t *testing.T) {
	const every = 2 * time.Second
	now := time.Unix(1_000_000, 0)
	info := stream.Info{Created: now, LastSeq: 7}
	var u unused
	for i := range 20 {
		if have, want := u.look(&info, now, every), time.Duration(i)*every; have != want {
			t.Fatalf("look %d: idle for %v, want %v", i, have, want)
		}
		now = now.Add(every)
	}
	now = now.Add(time.Hour)
	if have, want := u.look(&info, now, every), 19*every+2*every; have != want {
		t.Errorf("after an outage: idle for %v, want %v", have, want)
	}
	for what, change := range map[string]func(*stream.Info){
		"made anew":   func(i *stream.Info) { i.Created = i.Created.Add(time.Second) },
		"a heartbeat": func(i *stream.Info) { i.LastSeq++ },
		"a message":   func(i *stream.Info) { i.Messages = 1 },
	} {
		before, is := u, info
		change(&is)
		if have := before.look(&is, now.Add(every), every); have != 0 {
			t.Errorf("%s: idle for %v", what, have)
		}
	}
}

func TestNoStreamIsDeletedBetweenHeartbeats(t *testing.T) {
	for text, good := range map[string]bool{"0": true, "1ms": false, "59s": false, "1m": true, "24h": true} {
		var s Settings
		set := conf.New("test", "A test.")
		s.Declare(set)
		if _, err := set.Run([]string{"--delete-streams-after=" + text}, nil, nil); (err == nil) != good {
			t.Errorf("--delete-streams-after=%s: %v", text, err)
		}
	}
}
