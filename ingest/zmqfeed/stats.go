package zmqfeed

import (
	"sync/atomic"

	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest/follow"
)

// Reason says why batches are missing for good.
type Reason uint8

// The reasons of a Gap.
const (
	NoReplay     Reason = iota // the feed was given no replay endpoint
	Retention                  // the engine's replay no longer reaches back
	ReplayFailed               // the replay endpoint did not answer, or not to the end
	Undecodable                // the payload as a whole is unusable
	Oversize                   // the message is larger than Config.MaxMessage
	NumReasons   = 5
)

// String returns the reason as a metric's label.
func (r Reason) String() string {
	switch r {
	case NoReplay:
		return "no_replay"
	case Retention:
		return "retention"
	case ReplayFailed:
		return "replay_failed"
	case Undecodable:
		return "undecodable"
	case Oversize:
		return "oversize"
	}
	return "unknown"
}

// Stats counts what a Feed saw since it was made.
type Stats struct {
	Messages  uint64 // live messages taken off the queue
	Bytes     uint64 // of their payloads
	Batches   uint64 // given to the handler
	Live      uint64 // of those, live ones; the rest was replayed
	Replayed  uint64
	Missed    uint64 // batches that a connection's live messages lacked
	Gaps      uint64 // holes in live messages, of one batch or more
	Duplicate uint64 // live batches that came before, or were replayed

	Lost     [NumReasons]uint64 // batches told as Gap
	Restarts [follow.NumSigns]uint64
	Left     engine.Stats // what the decoder left out of batches that were given

	Connects    uint64 // subscriptions made
	Disconnects uint64 // subscriptions that broke
	Refused     uint64 // connections that could not be made
	Silent      uint64 // subscriptions given up because only replays brought anything

	Replays     uint64 // replays asked for
	Probes      uint64 // of those, because of silence
	ReplayBad   uint64 // replays that broke, or stopped before their end
	ReplayHoles uint64 // holes in replays
	ReplayExtra uint64 // replayed batches that were not asked for, or known already

	Malformed  uint64 // messages that are not topic, number and payload, live or replayed
	OtherTopic uint64 // live messages of another topic
	QueueFull  uint64 // times that reading stopped because the queue was full
}

// counters are Stats while they are counted. Each has one writer, so that a
// reader sees values that were true at about the same time.
type counters struct {
	messages, bytes, live, replayed, missed, gaps, duplicate atomic.Uint64

	lost     [NumReasons]atomic.Uint64
	restarts [follow.NumSigns]atomic.Uint64
	left     [engine.NumReasons]atomic.Uint64

	connects, disconnects, refused, silent               atomic.Uint64
	replays, probes, replayBad, replayHoles, replayExtra atomic.Uint64
	malformed, otherTopic, queueFull                     atomic.Uint64
	queued, queuedBytes                                  atomic.Int64 // messages between the reader and the handler
}

// Stats returns the counts so far.
func (f *Feed) Stats() Stats {
	c := &f.counters
	s := Stats{
		Messages: c.messages.Load(), Bytes: c.bytes.Load(), Live: c.live.Load(), Replayed: c.replayed.Load(),
		Missed: c.missed.Load(), Gaps: c.gaps.Load(), Duplicate: c.duplicate.Load(),
		Connects: c.connects.Load(), Disconnects: c.disconnects.Load(), Refused: c.refused.Load(), Silent: c.silent.Load(),
		Replays: c.replays.Load(), Probes: c.probes.Load(), ReplayBad: c.replayBad.Load(),
		ReplayHoles: c.replayHoles.Load(), ReplayExtra: c.replayExtra.Load(),
		Malformed: c.malformed.Load(), OtherTopic: c.otherTopic.Load(), QueueFull: c.queueFull.Load(),
	}
	s.Batches = s.Live + s.Replayed
	for i := range s.Lost {
		s.Lost[i] = c.lost[i].Load()
	}
	for i := range s.Restarts {
		s.Restarts[i] = c.restarts[i].Load()
	}
	for i := range s.Left {
		s.Left[i] = c.left[i].Load()
	}
	return s
}

// Queued returns how much waits between the connection and the handler.
func (f *Feed) Queued() (messages, bytes int) {
	return int(f.counters.queued.Load()), int(f.counters.queuedBytes.Load())
}
