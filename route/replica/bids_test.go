package replica

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

func sought(id string) load.Change {
	return load.Change{Kind: load.Sought, Key: load.Key{Owner: 1, ID: id}, Ranks: []load.Want{{Rank: shard.RankID{Worker: 3}, NewTokens: 7}}}
}

// TestBidsAreTold: after the changes that were made before, without a number of their own, so that one that is
// lost is no gap; what is too much for a message is left out; and nobody is told who is not there.
func TestBidsAreTold(t *testing.T) {
	s, heard := &sink{}, &sink{}
	p := New(Config{ID: 1, State: s, Transport: s, MessageBytes: 1 << 10})
	o := New(Config{ID: 2, State: heard, Transport: &sink{}})
	p.Record(sought("alone"))
	if err := p.Receive(header{typeHeartbeat, 0, 2, 0}.append(nil)); err != nil {
		t.Fatal(err)
	}
	p.Record(sought("first"))
	p.Record(load.Change{Kind: load.Freed, Key: load.Key{Owner: 1, ID: "freed"}})
	p.Record(sought(strings.Repeat("long", 300)))
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	if len(s.published) != 3 || s.published[1][4] != typeChanges || s.published[2][4] != typeBids { // the first asks for what router 2 has
		t.Fatalf("%d messages: %q", len(s.published), s.published)
	}
	if err := o.Receive(s.published[2]); err != nil {
		t.Fatal(err)
	}
	if len(heard.applied) != 1 || heard.applied[0].Key.ID != "first" || len(heard.applied[0].Ranks) != 1 {
		t.Errorf("heard of %+v", heard.applied)
	}
	was := p.mu.number
	p.Record(sought("second"))
	if err := p.Flush(); err != nil || p.mu.number != was {
		t.Errorf("a bid has number %d after %d: %v", p.mu.number, was, err)
	}

	// Nothing but bids is taken out of a message of bids: it has no place among the changes.
	msg := appendChange(header{typeBids, 0, 1, was}.append(nil), &load.Change{Kind: load.Freed, Key: load.Key{ID: "a"}}, 1000)
	if err := o.Receive(msg); err != nil || len(heard.applied) != 1 {
		t.Errorf("%v, applied %+v", err, heard.applied)
	}
}

// TestWhatIsBesideIsTold: fetches and failing workers, behind the bookings that they are of, and nothing else is taken out of such a message.
func TestWhatIsBesideIsTold(t *testing.T) {
	for kind, told := range map[byte]load.Change{
		typeFetches: {Kind: load.Fetched, Key: load.Key{Owner: 1, ID: "a"}, Rank: shard.RankID{Worker: 3, DPRank: 2}},
		typeFailing: {Kind: load.Failing, Key: load.Key{Owner: 1}, Rank: shard.RankID{Worker: 3}},
	} {
		isTold(t, kind, told)
	}
}

func isTold(t *testing.T, kind byte, told load.Change) {
	t.Helper()
	s, heard := &sink{}, &sink{}
	p := New(Config{ID: 1, State: s, Transport: s})
	o := New(Config{ID: 2, State: heard, Transport: &sink{}})
	if err := p.Receive(header{typeHeartbeat, 0, 2, 0}.append(nil)); err != nil {
		t.Fatal(err)
	}
	p.Record(told)
	p.Record(load.Change{Kind: load.Added, Key: load.Key{Owner: 1, ID: "a"}})
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	last := s.published[len(s.published)-1]
	if len(s.published) != 3 || s.published[1][4] != typeChanges || last[4] != kind { // the first asks for what router 2 has
		t.Fatalf("%d messages: %q", len(s.published), s.published)
	}
	if err := o.Receive(appendChange(last, &load.Change{Kind: load.Freed, Key: told.Key}, 1000)); err != nil {
		t.Fatal(err)
	}
	if len(heard.applied) != 1 || !reflect.DeepEqual(heard.applied[0], told) {
		t.Errorf("heard of %+v", heard.applied)
	}
}

// TestDelayIsMeasured by what comes back of one's own words; one that does not come back is not waited for.
func TestDelayIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var delay, least time.Duration
		s := &sink{}
		p := New(Config{ID: 1, State: s, Transport: s, Delay: func(d, l time.Duration) { delay, least = d, l }})
		beat := func(took time.Duration) {
			time.Sleep(1100 * time.Millisecond)
			if err := p.Tick(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(took)
			if err := p.Receive(bytes.Clone(s.published[len(s.published)-1])); err != nil {
				t.Fatal(err)
			}
		}
		for range 20 {
			beat(2 * time.Millisecond)
		}
		if delay < 2*time.Millisecond || delay > 2500*time.Microsecond {
			t.Errorf("words take 2 ms, and %v are waited for", delay)
		}
		if least > 2*time.Millisecond || least < 1500*time.Microsecond {
			t.Errorf("words take 2 ms, and %v at least is said", least)
		}
		was := delay
		beat(echoLost) // too late to tell anything
		if delay != was {
			t.Errorf("%v after a word that took %v", delay, echoLost)
		}
		for range 20 {
			beat(8 * time.Millisecond)
		}
		if delay < 8*time.Millisecond || delay > 20*time.Millisecond {
			t.Errorf("words take 8 ms by now, and %v are waited for", delay)
		}
		for i := range 20 {
			beat(time.Duration(1+8*(i%2)) * time.Millisecond)
		}
		if delay < 9*time.Millisecond || least < 0 || least > time.Millisecond {
			t.Errorf("words take 1 or 9 ms, and %v to %v are said", least, delay)
		}
	})
}
