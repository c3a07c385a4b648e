package ingest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// What NATS does not do is shown as what it means, not in the words of its client.
func TestWhatIsShownOfNATS(t *testing.T) {
	s := RankStatus{Status: follow.Status{Why: fmt.Errorf("%w: %w", errNoAnswer, nats.ErrTimeout)}}
	if text := s.LastError(); strings.Contains(text, "nats:") || !strings.Contains(text, "NATS did not answer") {
		t.Error(text)
	}
}

// The clock of the day may be set: for how long nothing was heard is not told by it.
func TestSilenceIsNotToldByTheClockOfTheDay(t *testing.T) {
	now := time.Now()
	c, cfg := contact{began: now}, Config{StaleAfter: time.Minute}
	now = now.Add(time.Hour)
	c.known(now)
	if last := c.last(); !last.Equal(now) || last == last.Round(0) { // which takes away what the own clock shows
		t.Errorf("heard at %v, it says %v", now, last)
	}
	if err := c.silent(now.Add(time.Minute-1), &cfg); err != nil {
		t.Error(err)
	}
	if err := c.silent(now.Add(time.Minute), &cfg); !errors.Is(err, ErrSilent) {
		t.Error(err)
	}
}

// While a machine sleeps, or a VM is halted, the process's own clock stands still, and what is published meanwhile
// is not known all the same.
func TestASleepOfTheMachineIsASilence(t *testing.T) {
	now := time.Now()
	c, cfg := contact{began: now.Add(-time.Hour)}, Config{StaleAfter: time.Minute}
	c.known(now)
	awake := now
	(*[2]uint64)(unsafe.Pointer(&awake))[0] += 600 << 30 // seconds of the clock of the day, see time.Time
	if awake.Sub(now) != 0 || awake.Unix()-now.Unix() != 600 {
		t.Fatalf("%v is no time after a sleep of 10 minutes at %v", awake, now)
	}
	c.heard(awake, &cfg) // a message of before, say
	if err := c.silent(awake, &cfg); !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), "10m0s") {
		t.Error("what is known is 10 minutes old, and counts as fresh:", err)
	}
	c.known(awake.Add(time.Second))
	if err := c.silent(awake.Add(time.Second), &cfg); err != nil {
		t.Error("what came meanwhile is applied:", err)
	}
	if err := c.silent(now.Add(time.Second+time.Minute), &cfg); !errors.Is(err, ErrSilent) {
		t.Error("the clock of the day was set back, and a silence is not noticed:", err)
	}
}

// openSilent returns one that has not heard of NATS for long, as if the process had been stopped, and
// has all of a stream ahead: nothing of it is applied before it is let through.
func openSilent(t *testing.T) (in *Ingest, letThrough func()) {
	t.Helper()
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	n.fleet(2, 100, nil)
	r, letThrough := n.heldUp(func(cfg *Config) { cfg.Discover = time.Hour }) // the test looks itself
	in = r.Ingest
	in.contact.after.Store(-int64(in.cfg.StaleAfter))
	return in, letThrough
}

// Who hears the server again after a silence has all of it ahead: what is known is of before
// until that is applied, whatever comes first.
func TestASilenceEndsOnceWhatCameMeanwhileIsApplied(t *testing.T) {
	in, letThrough := openSilent(t)
	silent := func(why string) {
		t.Helper()
		if s := in.Streams()[0]; s.Silent == nil || !errors.Is(in.Silent(), ErrSilent) || s.Position == s.Last {
			t.Errorf("%s, and all is known, or counts as fresh: %+v", why, s)
		}
	}
	silent("nothing was heard")
	waittest.For(t, "the stream is read", func() bool { return in.Streams()[0].InFlight > 0 })
	silent("messages have come and none is applied")
	in.live(deadline(t), &nats.Msg{Subject: "no worker's"})
	silent("a message came besides the stream")
	looked := make(chan struct{})
	go func() {
		in.looked(deadline(t), time.Now())
		close(looked)
	}()
	waittest.For(t, "all of the stream is read", func() bool { return in.readers()[0].mark().read == in.Streams()[0].Last })
	silent("where the stream ends is known")
	letThrough()
	<-looked
	if s := in.Streams()[0]; s.Position < s.Last || in.Silent() != nil {
		t.Errorf("all is applied: %+v, %v", s, in.Silent())
	}
	in.contact.after.Store(-int64(in.cfg.StaleAfter))
	in.looked(deadline(t), time.Now().Add(-2*in.cfg.StaleAfter))
	if err := in.Silent(); !errors.Is(err, ErrSilent) {
		t.Error("an answer of before the silence ends it")
	}
}

// What came in a further silence is ahead, too. But a stream of which the server has nothing to tell, as without a
// quorum of its own, makes nothing of the others one of before.
func TestASilenceThatLasts(t *testing.T) {
	in, _ := openSilent(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	in.missed, in.missedAt = map[string]uint64{}, time.Now().Add(-in.cfg.StaleAfter) // when the stream was empty
	if in.looked(over, time.Now()); in.Silent() == nil {
		t.Error("what came in the second silence is not applied, and all counts as fresh")
	}
	in.lookForAbsent(nil, nil)
	if in.looked(over, time.Now()); in.Silent() != nil {
		t.Error("a stream that is not there is waited for:", in.Silent())
	}
}
