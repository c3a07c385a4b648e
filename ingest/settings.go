package ingest

import (
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
)

// Settings are those settings of an Ingest that every program declares.
type Settings struct{ GapWait, GapAsk, Lease, DeleteStream, StaleAfter time.Duration }

// Declare adds the settings to the set.
func (s *Settings) Declare(set *conf.Set) {
	set.Duration(&s.GapWait, "gap-wait", defaultGapWait, `How long a rank's events wait at most for one before them that is
		missing in its stream, while its publisher is asked for it or cannot be asked. Then they are applied, and the
		rank counts as incomplete until it answers. What is missing because a message cannot be used is not waited for.`,
		conf.Between(10*time.Millisecond, time.Hour))
	set.Duration(&s.GapAsk, "gap-ask", defaultGapAsk, "After how long its publisher is asked for it.",
		conf.Between(time.Millisecond, time.Hour))
	set.Duration(&s.Lease, "conflict-lease", defaultLease, `Where two processes publish as one worker, for how long one of them must be
		silent before the other one is followed; until then the index holds nothing of the worker. Give more than publishers'
		time between heartbeats.`, conf.Between(100*time.Millisecond, time.Hour))
	set.Duration(&s.StaleAfter, "stale-after", defaultStaleAfter, `After how long without a word of NATS what is known counts as stale, until what came meanwhile is applied: of all
		workers, in answers, metrics and choices. kvindexer is not ready then; kvrouter is, as it chooses by load all the same. Three times
		--discover-every where that is longer.`, conf.Between(100*time.Millisecond, 365*24*time.Hour))
	set.Duration(&s.DeleteStream, "delete-streams-after", 0, `Delete the stream of a space that is empty, and into which nothing was
		published for so long while this process looked, not even a heartbeat: a minute at least; 0: none is deleted. NATS
		users need the permission $JS.API.STREAM.DELETE.* for that.`, conf.Between(0, 365*24*time.Hour))
	set.Check(func() error {
		if s.DeleteStream > 0 && s.DeleteStream < leastDeleteStream {
			return fmt.Errorf("--delete-streams-after: %v is less than %v, and a publisher's heartbeat may come later: give more, or 0", s.DeleteStream, leastDeleteStream)
		}
		return nil
	})
}

// Apply brings the settings into cfg.
func (s *Settings) Apply(cfg *Config) {
	cfg.GapWait, cfg.GapAsk, cfg.Lease, cfg.DeleteStream, cfg.StaleAfter = s.GapWait, s.GapAsk, s.Lease, s.DeleteStream, s.StaleAfter
}
