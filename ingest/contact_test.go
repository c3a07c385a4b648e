package ingest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/ingest/follow"
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
	c.heard(now)
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
