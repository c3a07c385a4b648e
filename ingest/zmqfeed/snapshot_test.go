package zmqfeed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/enginepub"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
)

// giver is an engine that gives snapshots of what it has published.
type giver struct {
	*enginepub.Publisher
	form    enginepub.Form
	process int

	mu   sync.Mutex
	none error    // why there is no snapshot
	have [][]byte // payloads published
}

func newGiver(t *testing.T, process int, cfg enginepub.Config) *giver {
	t.Helper()
	g := &giver{form: cfg.Form, process: process}
	if cfg.Endpoint == "" {
		cfg.Endpoint, cfg.Snapshot = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
	}
	cfg.Process, cfg.Take = fmt.Sprintf("process-%08d", process), g.take
	p, err := enginepub.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	g.Publisher = p
	t.Cleanup(func() { p.Close() })
	return g
}

// publish sends n batches; take sees only those that were.
func (g *giver) publish(n int) {
	for range n {
		g.mu.Lock()
		p := payload(g.process, len(g.have))
		g.have = append(g.have, p)
		g.mu.Unlock()
		g.Publish(p)
	}
}

func (g *giver) take(next uint64) ([][]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.none != nil || g.form == enginepub.VLLM {
		return slices.Clone(g.have[:min(int(next), len(g.have))]), g.none
	}
	page := binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(len(g.have)))
	for i := range g.have {
		page = append(page, mptest.Encode([]any{nil, []uint64{name(g.process, i)}})...)
	}
	return [][]byte{page}, nil
}

func (g *giver) refuse(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.none = why
}

func (g *giver) config() Config {
	cfg := config(g.Publisher)
	cfg.Snapshot, cfg.ReplayPause = g.SnapshotEndpoint(), 20*time.Millisecond
	return cfg
}

// whole waits until the recorder has all that the engine published, which is n batches.
func whole(r *recorder, f *Feed, g *giver, n int) {
	r.t.Helper()
	r.until(fmt.Sprintf("%d batches of process %d", n, g.process), func() bool { return len(r.have) == n && r.have[0] == name(g.process, 0) })
	r.holds(g.process, 0, n)
	r.until("fresh", func() bool { return f.Status().State == follow.Following })
}

func TestASnapshotBeginsAStreamThatNobodyReplays(t *testing.T) {
	for _, topic := range []string{"", "kv@pod@model"} {
		g := newGiver(t, 1, enginepub.Config{Topic: topic})
		g.publish(50)
		cfg := g.config()
		cfg.Topic, cfg.ExactTopic = topic, topic != ""
		r := newRecorder(t)
		f, _ := start(t, cfg, r)
		r.until("the snapshot", func() bool { return len(r.have) == 50 })
		subscribers(r, g)
		if st := f.Status(); st.State != follow.Recovering || !st.Incomplete {
			t.Errorf("before the wire reaches it: %+v", st)
		}
		g.publish(50)
		whole(r, f, g, 100)
		if s := f.Stats(); s.Snapshots != 1 || s.SnapshotBad != 0 || s.Gaps != 0 || len(r.gaps) != 0 || s.Malformed+s.OtherTopic != 0 {
			t.Errorf("%+v, gaps %v", s, r.gaps)
		}
	}
}

func subscribers(r *recorder, g *giver) {
	r.t.Helper()
	r.until("subscribed", func() bool { return g.Subscribers() == 1 })
}

// What neither came nor is replayed begins the stream anew, complete.
func TestASnapshotMendsWhatReplaysDoNotHave(t *testing.T) {
	for _, replay := range []string{"", "tcp://127.0.0.1:0"} {
		lost := func(seq uint64) bool { return seq >= 20 && seq < 40 }
		g := newGiver(t, 1, enginepub.Config{Endpoint: "tcp://127.0.0.1:0", Replay: replay, Snapshot: "tcp://127.0.0.1:0", Buffer: 5, Lose: lost})
		r := newRecorder(t)
		f, _ := start(t, g.config(), r)
		subscribers(r, g)
		g.publish(10)
		whole(r, f, g, 10)
		g.publish(50)
		whole(r, f, g, 60)
		if len(r.gaps) != 0 || r.snapshots < 2 {
			t.Errorf("replay %q: gaps %v, %d snapshots", replay, r.gaps, r.snapshots)
		}
	}
}

// What a replay has is not asked for as a whole: the snapshot is dearer.
func TestReplaysGoBeforeSnapshots(t *testing.T) {
	g := newGiver(t, 1, enginepub.Config{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Snapshot: "tcp://127.0.0.1:0",
		Lose: func(seq uint64) bool { return seq%7 == 2 }}) // not the last
	r := newRecorder(t)
	f, _ := start(t, g.config(), r)
	subscribers(r, g)
	g.publish(2)
	whole(r, f, g, 2)
	named := f.Stats().Snapshots // those that name the process, until the stream has come to where one was taken
	g.publish(198)
	whole(r, f, g, 200)
	if s := f.Stats(); s.Gaps == 0 || s.Replays == 0 || s.Snapshots > named {
		t.Errorf("%d snapshots before, %+v", named, s)
	}
}

// An engine that is another process goes on where the one before ended, by chance: nothing
// but its name tells.
func TestAProcessTellsItself(t *testing.T) {
	g := newGiver(t, 1, enginepub.Config{})
	r := newRecorder(t)
	cfg := g.config()
	f, stop := start(t, cfg, r)
	subscribers(r, g)
	g.publish(20)
	whole(r, f, g, 20)
	for _, resumed := range []bool{false, true} {
		before := g
		if resumed {
			stop()
			cfg.Position = f.Position(nil)
		}
		before.Close()
		g = newGiver(t, g.process+1, enginepub.Config{Endpoint: before.Endpoint(), Snapshot: before.SnapshotEndpoint()})
		g.publish(20)
		if resumed {
			f, stop = start(t, cfg, r)
		}
		subscribers(r, g)
		g.publish(1)
		whole(r, f, g, 21)
		if s := f.Stats(); s.Restarts[follow.Named] == 0 {
			t.Errorf("resumed %v: the restart is not counted: %+v", resumed, s)
		}
	}
}

func TestWithoutASnapshotTheStreamIsIncompleteUntilThereIsOne(t *testing.T) {
	g := newGiver(t, 1, enginepub.Config{})
	g.publish(20)
	g.refuse(errors.New("not now"))
	r := newRecorder(t)
	f, _ := start(t, g.config(), r)
	subscribers(r, g)
	g.publish(5)
	r.until("the rest", func() bool { return len(r.have) == 5 && f.Status().Incomplete })
	if s := f.Stats(); s.SnapshotBad == 0 || !s.SnapshotDown || s.Snapshots != 0 {
		t.Errorf("%+v", s)
	}
	g.refuse(nil)
	n := 25
	r.until("a snapshot", func() bool { g.publish(1); n++; return r.snapshots > 0 })
	if whole(r, f, g, n); f.Stats().SnapshotDown {
		t.Error("the endpoint counts as down")
	}
}

// SGLang's have hashes alone.
func TestASnapshotOfHashes(t *testing.T) {
	g := newGiver(t, 1, enginepub.Config{Form: enginepub.SGLang, Topic: "kv"})
	g.publish(50)
	r := newRecorder(t)
	cfg := g.config()
	cfg.Topic, cfg.ExactTopic = "kv", true
	f, _ := start(t, cfg, r)
	r.until("the snapshot", func() bool { return len(r.have) == 50 })
	subscribers(r, g)
	g.publish(10)
	r.until("what follows", func() bool { return len(r.have) == 60 })
	r.holds(1, 0, 60)
	st, s := f.Status(), f.Stats()
	if !st.Incomplete || s.Snapshots != 1 || s.OtherTopic+s.Malformed != 0 {
		t.Errorf("%+v, %+v: the content of blocks is not known, and no other snapshot has it", st, s)
	}
}

// What of a snapshot cannot be read is missing, and shows in all of it.
func TestASnapshotThatIsReadInPart(t *testing.T) {
	number := binary.BigEndian.AppendUint64(nil, 9)
	own := fmt.Appendf(nil, "%-16.16s", "process-00000001")
	half := mptest.Encode([]any{1.5, []any{mptest.Map{"type", "BlockRemoved", "block_hashes", "all"}}})
	g := newGiver(t, 1, enginepub.Config{})
	cfg := g.config()
	cfg.Snapshot = answers(t, [][]byte{nil, number, own, payload(1, 0), half, payload(1, 1)})
	r := newRecorder(t)
	f, _ := start(t, cfg, r)
	r.until("the snapshot", func() bool { return len(r.have) == 2 })
	if r.lacking != 2 {
		t.Errorf("%d of 2 events say that something is missing", r.lacking)
	}
	if st := f.Status(); !st.Incomplete {
		t.Errorf("%+v", st)
	}
}

// answers is a snapshot endpoint that answers each question with these messages.
func answers(t *testing.T, messages ...[][]byte) string {
	t.Helper()
	l, err := zmtp.Listen("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	t.Cleanup(func() { l.Close() })
	all.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer nc.Close()
				c, err := zmtp.Handshake(nc, zmtp.Router, zmtp.Options{})
				var m zmtp.Message
				for err == nil {
					if err = c.ReadMessage(&m); err == nil {
						for _, frames := range messages {
							err = errors.Join(err, c.WriteMessage(frames...))
						}
					}
				}
			})
		}
	})
	return "tcp://" + l.Addr().String()
}

// What a snapshot endpoint may answer that is of no use: the stream goes on as without.
func TestSnapshotsThatAreNone(t *testing.T) {
	number := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	own := fmt.Appendf(nil, "%-16.16s", "process-00000001")
	none, header := []byte(nil), func(count int) []byte {
		return mptest.Encode([]any{1, "process-00000001", 0, 100, 99, "b", count})
	}
	text := func(s string) []byte { return []byte(s) }
	for name, messages := range map[string][][][]byte{
		"nothing of the kind":       {{none, text("hello")}},
		"no empty frame":            {{number(3), own, payload(1, 1)}},
		"none to be had":            {{none, number(1<<64 - 2), own}},
		"a short name":              {{none, number(3), own[:8], payload(1, 1)}},
		"not a batch":               {{none, number(99), own, text("?")}},
		"larger than allowed":       {{none, number(99), own, bytes.Repeat(payload(1, 1), 1000)}},
		"an error":                  {{none, text("error"), text("busy")}},
		"a page before the header":  {{none, text("chunk"), {0x90}}},
		"an end before the header":  {{none, text("end"), none}},
		"two headers":               {{none, text("header"), header(0)}, {none, text("header"), header(0)}},
		"a header that is none":     {{none, text("header"), text("?")}},
		"fewer blocks than it says": {{none, text("header"), header(1)}, {none, text("end"), none}},
		"a page that is none":       {{none, text("header"), header(1)}, {none, text("chunk"), text("?")}, {none, text("end"), none}},
		"no end":                    {{none, text("header"), header(0)}},
		"no answer":                 {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGiver(t, 1, enginepub.Config{Lose: func(seq uint64) bool { return seq == 5 }})
			cfg := g.config()
			cfg.Snapshot, cfg.MaxSnapshot, cfg.SnapshotIdle = answers(t, messages...), 10_000, 50*time.Millisecond
			r := newRecorder(t)
			f, _ := start(t, cfg, r)
			r.until("asked", func() bool { return f.Stats().SnapshotBad > 0 })
			subscribers(r, g)
			g.publish(20)
			r.reach(20)
			r.holds(1, 0, 20, 5)
			if s := f.Stats(); s.Snapshots != 0 || !f.Status().Incomplete {
				t.Errorf("%+v, %+v", s, f.Status())
			}
		})
	}
}

// FuzzSnapshot reads answers of any kind.
func FuzzSnapshot(f *testing.F) {
	f.Add([]byte("header"), mptest.Encode([]any{1, "e", 0, 100, 99, "b", 1}), mptest.Encode([]any{[]any{nil, []uint64{5}}}))
	f.Add(binary.BigEndian.AppendUint64(nil, 7), bytes.Repeat([]byte{1}, 16), payload(1, 2))
	f.Fuzz(func(t *testing.T, kind, body, page []byte) {
		feed := &Feed{cfg: Config{Decoder: engine.Config{BlockSize: 4}, MaxSnapshot: 1 << 20}}
		var p snapshot
		for _, frames := range [][][]byte{{nil, kind, body, page}, {nil, []byte("chunk"), page}, {nil, []byte("end"), nil}} {
			done, err := p.take(frames)
			if err != nil {
				return
			}
			if done {
				break
			}
		}
		if err := feed.readable(&p); err == nil && p.Process == 0 {
			t.Error("a snapshot is taken that names no process")
		}
	})
}
