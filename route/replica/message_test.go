package replica

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

func someChanges() []load.Change {
	k := load.Key{Owner: 5, ID: "req-1", Stage: 2}
	return []load.Change{
		{Kind: load.Added, Key: k, Rank: shard.RankID{Worker: 1 << 63, DPRank: 7}, Request: load.Request{
			Blocks: []uint64{1, 2, 1 << 60}, Private: 3, PromptTokens: 70, NewTokens: 20, ExpectedOutput: 9, Generated: 4, Prefilled: true, Decay: 0.25,
		}},
		{Kind: load.Added, Key: load.Key{Owner: 5, ID: "é"}},
		{Kind: load.Prefilled, Key: k},
		{Kind: load.Generated, Key: k, Tokens: 1 << 20},
		{Kind: load.Filled, Key: k, Weight: -1},
		{Kind: load.Freed, Key: k},
	}
}

func TestChangesComeBack(t *testing.T) {
	var b []byte
	want := someChanges()
	for i := range want {
		b = appendChange(b, &want[i], 1<<20)
	}
	r := reader{rest: b}
	if got := r.changes(5); r.err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: %+v\nwant %+v", r.err, got, want)
	}
	for n := 1; n < len(b); n++ { // cut anywhere: an error or whole changes, never more
		r := reader{rest: b[:n]}
		if got := r.changes(5); r.err == nil && len(got) >= len(want) || r.err != nil && !errors.Is(r.err, ErrMalformed) {
			t.Errorf("cut after %d of %d bytes: %v", n, len(b), r.err)
		}
	}
}

// TestLongPrompts: what does not fit a message is told as a number.
func TestLongPrompts(t *testing.T) {
	c := load.Change{Kind: load.Added, Key: load.Key{ID: "a"}, Request: load.Request{Blocks: make([]uint64, 1000)}}
	b := appendChange(nil, &c, 1000)
	if len(b) > 1000 {
		t.Errorf("%d bytes, at most 1000 were allowed", len(b))
	}
	r := reader{rest: b}
	got := r.changes(0)
	if r.err != nil || len(got) != 1 || len(got[0].Request.Blocks)+got[0].Request.Private != 1000 || len(got[0].Request.Blocks) < 110 {
		t.Errorf("%v: %d blocks and %d more", r.err, len(got[0].Request.Blocks), got[0].Request.Private)
	}
}

// sink is a State and Transport that keeps what it is given.
type sink struct {
	mu        sync.Mutex
	applied   []load.Change
	published [][]byte
	err       error
}

func (s *sink) Apply(c load.Change) bool {
	s.applied = append(s.applied, c)
	return true
}

func (s *sink) Replace(_ uint64, live iter.Seq[load.Change]) {
	for c := range live {
		s.applied = append(s.applied, c)
	}
}
func (s *sink) DropOwner(uint64)                           { s.applied = nil }
func (s *sink) Own(begin func(), each func(c load.Change)) { begin() }

func (s *sink) Publish(msg []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published = append(s.published, msg)
	return s.err
}
func (s *sink) Send(_ uint64, msg []byte) error { return s.Publish(msg) }

// TestForeignAndMalformed: own messages, other scopes and what cannot be read
// change nothing.
func TestForeignAndMalformed(t *testing.T) {
	s := &sink{}
	p := New(Config{ID: 1, Scope: 7, State: s, Transport: s, MaxPeers: 1})
	freed := appendChange(nil, &load.Change{Kind: load.Freed, Key: load.Key{ID: "a"}}, 1000)
	msg := func(h header, body []byte) []byte { return append(h.append(nil), body...) }
	for _, c := range []struct {
		name string
		msg  []byte
		bad  bool
	}{
		{"own", msg(header{typeChanges, 7, 1, 1}, freed), false},
		{"other scope", msg(header{typeChanges, 8, 2, 1}, freed), false},
		{"no header", []byte("KVR"), true},
		{"other version", bytes.Replace(msg(header{typeChanges, 7, 2, 1}, freed), []byte("KVR\x01"), []byte("KVR\x02"), 1), true},
		{"cut", msg(header{typeChanges, 7, 2, 1}, freed[:2]), true},
		{"unknown kind", msg(header{typeChanges, 7, 2, 1}, []byte{99, 0, 0}), true},
		{"unknown type", msg(header{99, 7, 2, 1}, nil), true},
	} {
		err := p.Receive(c.msg)
		if errors.Is(err, ErrMalformed) != c.bad || err != nil && !c.bad {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if got := p.Stats(); got.Peers != 0 || got.Malformed != 5 || got.Foreign != 1 || len(s.applied) != 0 {
		t.Errorf("%+v, applied %v", got, s.applied)
	}
	for id := range uint64(3) {
		if err := p.Receive(msg(header{typeHeartbeat, 7, 10 + id, 0}, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.Stats(); got.Peers != 1 || got.Foreign != 3 {
		t.Errorf("beyond MaxPeers: %+v", got)
	}
}

// TestSnapshotsDoNotMix: two snapshots of the same state are cut differently;
// parts of the older one that come late are not taken for the newer one's.
func TestSnapshotsDoNotMix(t *testing.T) {
	s := &sink{}
	p := New(Config{ID: 1, State: s, Transport: s})
	part := func(at place, ids ...string) {
		t.Helper()
		msg := at.append(header{typeSnapshot, 0, 2, 5}.append(nil))
		for _, id := range ids {
			msg = appendChange(msg, &load.Change{Kind: load.Added, Key: load.Key{ID: id}}, 1000)
		}
		if err := p.Receive(msg); err != nil {
			t.Fatal(err)
		}
	}
	part(place{1, 0, false}, "a", "b")
	part(place{2, 0, false}, "b", "c")
	part(place{1, 1, true}, "c", "d")
	if len(s.applied) != 0 {
		t.Fatalf("applied %v of a snapshot that is not whole", s.applied)
	}
	part(place{2, 1, true}, "d", "a")
	var got string
	for _, c := range s.applied {
		got += c.Key.ID
	}
	if got != "bcda" {
		t.Errorf("applied %q, want the newer snapshot's b c d a", got)
	}
	part(place{3, 0, true}, "x") // of a state that is known already
	if st := p.Stats(); st.Synced != 1 || st.Snapshots != 1 || len(s.applied) != 4 {
		t.Errorf("%+v, applied %v", st, s.applied)
	}
}

// TestTransportFails: its error is told, and the number it had is a gap.
func TestTransportFails(t *testing.T) {
	s := &sink{err: errors.New("no connection")}
	p := New(Config{ID: 1, State: s, Transport: s, Now: func() time.Time { return time.Unix(9, 0) }})
	if err := p.Receive(header{typeHeartbeat, 0, 2, 0}.append(nil)); err == nil || !strings.Contains(err.Error(), "no connection") {
		t.Errorf("asking for a snapshot: %v", err)
	}
	p.Record(load.Change{Kind: load.Freed})
	if err := p.Flush(); err == nil {
		t.Error("no error")
	}
	s.err = nil
	if err := p.Tick(); err != nil {
		t.Fatal(err)
	}
	h, _, err := readHeader(s.published[len(s.published)-1])
	if err != nil || h.kind != typeHeartbeat || h.number != 1 {
		t.Errorf("heartbeat %+v, %v", h, err)
	}
}

// TestRun flushes at once, ticks, and leaves at the end.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{}
		p := New(Config{ID: 1, State: s, Transport: s})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { p.Run(ctx, func(err error) { t.Error(err) }); close(done) }()
		if err := p.Receive(header{typeHeartbeat, 0, 2, 0}.append(nil)); err != nil {
			t.Fatal(err)
		}
		p.Record(load.Change{Kind: load.Freed, Key: load.Key{ID: "a"}})
		synctest.Wait()
		kinds := func() (list []byte) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, m := range s.published {
				list = append(list, m[4])
			}
			return list
		}
		if got := kinds(); !bytes.Contains(got, []byte{typeChanges}) {
			t.Errorf("sent %v before any time passed, want the change", got)
		}
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		if got := bytes.Count(kinds(), []byte{typeHeartbeat}); got != 2 {
			t.Errorf("%d heartbeats in 1.1 s", got)
		}
		cancel()
		<-done
		if got := kinds(); got[len(got)-1] != typeLeaving {
			t.Errorf("the last message is of type %d", got[len(got)-1])
		}
	})
}

// TestWhoAsksAgainAndAgain gets no more snapshots than they should ask for, and
// keeps nobody else from theirs.
func TestWhoAsksAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{}
		p := New(Config{ID: 1, State: s, Transport: s})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { p.Run(ctx, func(err error) { t.Error(err) }); close(done) }()
		for range 1000 {
			for from := range uint64(3) {
				if err := p.Receive(header{typeWanted, 0, 2 + from, 0}.append(nil)); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		cancel()
		<-done
		if n := p.Stats().Served; n < 30 || n > 42 {
			t.Errorf("%d snapshots in 10 s, want 4 a second", n)
		}
		sent := 0
		for _, m := range s.published {
			if m[4] == typeSnapshot {
				sent++
			}
		}
		if n := int(p.Stats().Served); sent < 3*(n-1) {
			t.Errorf("%d times a snapshot, and sent %d times, want three at a time", n, sent)
		}
	})
}

// FuzzReceive: any bytes are an error or a message whose changes, encoded
// again, read the same.
func FuzzReceive(f *testing.F) {
	h := header{typeChanges, 0, 2, 1}.append(nil)
	for _, c := range someChanges() {
		h = appendChange(h, &c, 1<<10)
	}
	f.Add(h)
	f.Add(append(place{1, 0, true}.append(header{typeSnapshot, 0, 2, 3}.append(nil)), h[headerSize:]...))
	fetch := load.Change{Kind: load.Fetched, Key: load.Key{Owner: 2, ID: "a"}, Rank: shard.RankID{Worker: 3, DPRank: 4}}
	f.Add(appendChange(header{typeFetches, 0, 2, 1}.append(nil), &fetch, 1<<10))
	fails := load.Change{Kind: load.Failing, Key: load.Key{Owner: 2}, Rank: shard.RankID{Worker: 3}}
	f.Add(appendChange(header{typeFailing, 0, 2, 1}.append(nil), &fails, 1<<10))
	f.Add(header{typeHeartbeat, 0, 2, 9}.append(nil))
	f.Add(header{typeWanted, 0, 2, 9}.append(nil))
	f.Fuzz(func(t *testing.T, msg []byte) {
		s := &sink{}
		p := New(Config{ID: 1, State: s, Transport: s, SnapshotBytes: 1 << 20})
		if err := p.Receive(header{typeHeartbeat, 0, 2, 0}.append(nil)); err != nil {
			t.Fatal(err)
		}
		// A snapshot of nothing: changes of message 1 are next.
		if err := p.Receive(place{0, 0, true}.append(header{typeSnapshot, 0, 2, 0}.append(nil))); err != nil {
			t.Fatal(err)
		}
		if err := p.Receive(msg); err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatal(err)
		}
		var again []byte
		for i := range s.applied {
			if s.applied[i].Key.Owner == 1 {
				t.Fatal("a change of our own bookings")
			}
			again = appendChange(again, &s.applied[i], 1<<30)
		}
		r := reader{rest: again}
		if len(s.applied) > 0 {
			if got := r.changes(s.applied[0].Key.Owner); r.err != nil || !reflect.DeepEqual(got, s.applied) {
				t.Fatalf("%v: %+v\nwant %+v", r.err, got, s.applied)
			}
		}
	})
}
