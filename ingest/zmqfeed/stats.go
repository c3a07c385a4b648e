package zmqfeed

import (
	"sync"
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
	Salted   bool         // some blocks were of salted prompts

	Connects    uint64 // subscriptions made
	Disconnects uint64 // subscriptions that broke
	Refused     uint64 // connections that could not be made
	Silent      uint64 // subscriptions given up because only replays brought anything
	Slept       uint64 // and because the machine had slept

	Replays     uint64 // replays asked for
	Probes      uint64 // of those, because of silence
	ReplayBad   uint64 // replays that broke, or stopped before their end
	ReplayDown  bool   // the last one did
	ReplayHoles uint64 // holes in replays
	ReplayExtra uint64 // replayed batches that were not asked for, or known already

	Snapshots    uint64 // snapshots taken
	SnapshotBad  uint64 // snapshots that did not come, or were of no use
	SnapshotDown bool   // the last one was

	Malformed  uint64 // messages that are not topic, number and payload, live or replayed
	OtherTopic uint64 // live messages of another topic
	QueueFull  uint64 // times that reading stopped because the queue was full
}

// Reasons names why something was left out, and why batches were lost: those of which there
// were any.
func (s *Stats) Reasons() (left, lost []string) {
	for r := range engine.Reason(engine.NumReasons) {
		if s.Left[r] > 0 {
			left = append(left, r.String())
		}
	}
	for r := range Reason(NumReasons) {
		if s.Lost[r] > 0 {
			lost = append(lost, r.String())
		}
	}
	return left, lost
}

// counters are Stats while they are counted. Queued ones belong to the reader, too.
type counters struct {
	mu                  sync.Mutex
	stats               Stats        // guarded by mu
	queued, queuedBytes atomic.Int64 // messages between the reader and the handler
}

// count changes the counts.
func (f *Feed) count(change func(*Stats)) {
	f.counters.mu.Lock()
	defer f.counters.mu.Unlock()
	change(&f.counters.stats)
}

// Stats returns the counts so far.
func (f *Feed) Stats() (s Stats) {
	f.count(func(now *Stats) { s = *now })
	s.Batches = s.Live + s.Replayed
	return s
}

// Queued returns how much waits between the connection and the handler.
func (f *Feed) Queued() (messages, bytes int) {
	return int(f.counters.queued.Load()), int(f.counters.queuedBytes.Load())
}

// Series is one of the figures that metrics show of Stats.
type Series struct {
	Name   string
	Labels []string // name and value in turns
	Value  func(*Stats) uint64
}

// AllSeries returns them, in one order.
func AllSeries() []Series {
	all := []Series{
		{"batches_total", []string{"way", "live"}, func(s *Stats) uint64 { return s.Live }},
		{"batches_total", []string{"way", "replayed"}, func(s *Stats) uint64 { return s.Replayed }},
		{"bytes_total", nil, func(s *Stats) uint64 { return s.Bytes }},
		{"missed_batches_total", nil, func(s *Stats) uint64 { return s.Missed }},
		{"gaps_total", nil, func(s *Stats) uint64 { return s.Gaps }},
		{"replays_total", nil, func(s *Stats) uint64 { return s.Replays }},
		{"snapshots_total", []string{"result", "taken"}, func(s *Stats) uint64 { return s.Snapshots }},
		{"snapshots_total", []string{"result", "useless"}, func(s *Stats) uint64 { return s.SnapshotBad }},
		{"connects_total", nil, func(s *Stats) uint64 { return s.Connects }},
		{"disconnects_total", nil, func(s *Stats) uint64 { return s.Disconnects }},
		{"given_up_total", []string{"reason", "silent"}, func(s *Stats) uint64 { return s.Silent }},
		{"given_up_total", []string{"reason", "slept"}, func(s *Stats) uint64 { return s.Slept }},
	}
	for r := range Reason(NumReasons) {
		all = append(all, Series{"lost_batches_total", []string{"reason", r.String()}, func(s *Stats) uint64 { return s.Lost[r] }})
	}
	for c := follow.FellBack; c <= follow.Unproven; c++ {
		all = append(all, Series{"restarts_total", []string{"cause", c.String()}, func(s *Stats) uint64 { return s.Restarts[c] }})
	}
	for r := range engine.Reason(engine.NumReasons) {
		all = append(all, Series{"left_out_total", []string{"reason", r.String()}, func(s *Stats) uint64 { return s.Left[r] }})
	}
	return all
}

// SeriesHelp returns the help texts of the families, each named with the prefix.
func SeriesHelp(prefix string) map[string]string {
	return map[string]string{
		prefix + "batches_total":        "Batches of engines, by way: live, or replayed.",
		prefix + "bytes_total":          "Bytes of engines' live messages.",
		prefix + "missed_batches_total": "Batches that did not come live; the replay has those that are not lost.",
		prefix + "gaps_total":           "Holes in engines' live messages.",
		prefix + "replays_total":        "Replays asked of engines.",
		prefix + "snapshots_total":      "Snapshots asked of engines, by result: taken, or useless.",
		prefix + "connects_total":       "Subscriptions to engines.",
		prefix + "disconnects_total":    "Subscriptions that broke.",
		prefix + "given_up_total":       "Subscriptions given up, by reason: silent (only replays brought anything), or slept (the machine had).",
		prefix + "lost_batches_total":   "Batches that are lost for good, by reason.",
		prefix + "restarts_total":       "Engine restarts, by cause: what showed them.",
		prefix + "left_out_total":       "Things left out of batches, by reason.",
	}
}
