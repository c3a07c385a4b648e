package console

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/replica"
)

// maxSources bounds the ranks that GET api/streams lists.
const maxSources = 500

// streams is the answer of GET api/streams.
type streams struct {
	At         int64          `json:"at_ms"`
	Replica    string         `json:"replica"`    // this one's name
	Transports map[string]int `json:"transports"` // present workers, by how their events come
	Streams    []streamOf     `json:"streams"`
	Sources    []source       `json:"sources"` // ranks that need attention first, then those with most gaps and recoveries
	More       int            `json:"more"`    // ranks that are not listed
	Recoveries []recovery     `json:"recoveries"`
	Snapshots  []snapshotOf   `json:"snapshots"`
	Replicas   []replicaOf    `json:"replicas"` // of the namespace; for a tenant none
}

// replicaOf is a replica that has written to the registry's bucket, or the newest snapshot of
// a stream.
type replicaOf struct {
	Replica string  `json:"replica"`
	This    bool    `json:"this"`
	Beat    *int64  `json:"beat_ago_ms"` // since its last beat; null: it has none
	Writes  []named `json:"writes"`      // streams whose newest snapshot is its
}

type named struct {
	Stream string     `json:"stream"`
	Space  shownSpace `json:"space"`
}

type streamOf struct {
	Stream   string     `json:"stream"`
	Space    shownSpace `json:"space"`
	Created  int64      `json:"created_ms"`
	Position string     `json:"position"` // up to which everything is applied
	Last     string     `json:"last"`
	Lag      uint64     `json:"lag_messages"`
	LagMs    int64      `json:"lag_ms"`
	InFlight int        `json:"in_flight"`
	Bytes    int        `json:"in_flight_bytes"`
	CaughtUp bool       `json:"caught_up"`
	Error    *string    `json:"error"`
	Stalled  *string    `json:"stalled"`
	Heard    int64      `json:"heard_ms"` // all else is as of then
}

// source is how the reading of one rank's events stands.
type source struct {
	Space      shownSpace `json:"space"`
	Worker     string     `json:"worker"`
	Rank       uint32     `json:"rank"`
	By         string     `json:"by"` // nats, or zmq: the engine's own socket
	State      string     `json:"state"`
	Stale      bool       `json:"stale"`
	LastID     string     `json:"last_id"`
	Events     uint64     `json:"events"` // since this process began
	Gaps       uint64     `json:"gaps"`   // that stayed open
	Missed     uint64     `json:"missed_events"`
	Recoveries uint64     `json:"recoveries"`
	Failed     uint64     `json:"recoveries_failed"`
	LastEvent  *int64     `json:"last_event_ms"`
	LastSeen   *int64     `json:"last_seen_ms"`
	Why        *string    `json:"why"`
}

// recovery is one that is over.
type recovery struct {
	Space  shownSpace `json:"space"`
	Worker string     `json:"worker"`
	Rank   uint32     `json:"rank"`
	Cause  string     `json:"cause"`
	Began  int64      `json:"began_ms"`
	Took   float64    `json:"took_ms"`
	Became string     `json:"became"` // events: what was missing came; dump: all that the rank holds was taken; failed
	Error  *string    `json:"error"`
}

type snapshotOf struct {
	Stream  string     `json:"stream"`
	Space   shownSpace `json:"space"`
	Known   int64      `json:"known_ms"` // when this replica looked
	Name    *string    `json:"name"`     // of the newest; null: there is none
	Written *int64     `json:"written_ms"`
	Writer  *string    `json:"writer"` // the replica that took it
	Seq     *string    `json:"seq"`    // of the stream, up to which it has everything
	Bytes   *uint64    `json:"bytes"`
	Blocks  *uint64    `json:"blocks"`
	Error   *string    `json:"error"` // why none was taken at the last try
}

// streams answers GET api/streams.
func (c *Console) streams(r *request) (*edge.Reply, *edge.Problem) {
	a := streams{
		At: time.Now().UnixMilli(), Replica: c.cfg.Replica.Name(), Transports: map[string]int{},
		Streams: []streamOf{}, Sources: []source{}, Recoveries: []recovery{}, Snapshots: []snapshotOf{},
	}
	if reg := c.cfg.Replica.Registry(); reg != nil {
		for _, e := range reg.Snapshot(false) {
			if r.sees(e.Key.Space.Group) {
				a.Transports[cmp.Or(string(e.Transport), string(registry.JetStream))]++
			}
		}
	}
	spaces := map[string]event.Space{}
	for _, s := range c.cfg.Replica.Streams() {
		if !r.sees(s.Space.Group) {
			continue
		}
		spaces[s.Stream] = s.Space
		a.Streams = append(a.Streams, streamShown(&s, connected(c.cfg.Replica)))
	}
	c.cfg.Replica.EachReading(func(g *replica.Reading) {
		if r.sees(g.Space.Group) && g.State != follow.Departed {
			a.Sources = append(a.Sources, sourceOf(g))
		}
	})
	slices.SortFunc(a.Sources, func(a, b source) int {
		return cmp.Or(-cmp.Compare(a.attention(), b.attention()), -cmp.Compare(a.Gaps+a.Failed+a.Recoveries, b.Gaps+b.Failed+b.Recoveries),
			strings.Compare(a.Space.Model, b.Space.Model), cmp.Compare(len(a.Worker), len(b.Worker)), strings.Compare(a.Worker, b.Worker), cmp.Compare(a.Rank, b.Rank))
	})
	a.More = max(0, len(a.Sources)-maxSources)
	a.Sources = a.Sources[:len(a.Sources)-a.More]
	for _, v := range c.cfg.Replica.Recoveries() {
		if !r.sees(v.Space.Group) {
			continue
		}
		one := recovery{
			Space: showSpace(v.Space), Worker: number(v.Worker), Rank: v.DPRank, Cause: v.Cause.String(), Began: v.Began.UnixMilli(),
			Took: float64(v.Took) / float64(time.Millisecond), Became: "events", Error: failure(v.Err),
		}
		switch {
		case v.Err != nil:
			one.Became = "failed"
		case v.Dump:
			one.Became = "dump"
		}
		a.Recoveries = append(a.Recoveries, one)
	}
	for name, n := range c.cfg.Replica.Snapshots() {
		sp, ok := spaces[name]
		if !ok { // another's, or not read
			continue
		}
		one := snapshotOf{Stream: name, Space: showSpace(sp), Known: n.At.UnixMilli(), Error: failure(n.Err)}
		if n.Name != "" {
			written, seq := n.Written.UnixMilli(), number(n.Seq)
			one.Name, one.Written, one.Writer, one.Seq, one.Bytes, one.Blocks = &n.Name, &written, some(n.Writer), &seq, &n.Bytes, &n.Blocks
		}
		a.Snapshots = append(a.Snapshots, one)
	}
	slices.SortFunc(a.Snapshots, func(a, b snapshotOf) int { return strings.Compare(a.Stream, b.Stream) })
	a.Replicas = c.replicas(r, a.Snapshots)
	return edge.ReplyJSON(a), nil
}

// replicas returns those that are heard of, this one first.
func (c *Console) replicas(r *request, snapshots []snapshotOf) []replicaOf {
	list := []replicaOf{}
	if r.Tenant != nil {
		return list
	}
	at := func(name string) *replicaOf {
		i := slices.IndexFunc(list, func(o replicaOf) bool { return o.Replica == name })
		if i < 0 {
			i, list = len(list), append(list, replicaOf{Replica: name, This: name == c.cfg.Replica.Name(), Writes: []named{}})
		}
		return &list[i]
	}
	at(c.cfg.Replica.Name())
	if reg := c.cfg.Replica.Registry(); reg != nil {
		for _, b := range reg.Beats() {
			ago := b.Ago.Milliseconds()
			at(b.Replica).Beat = &ago
		}
	}
	for _, s := range snapshots {
		if s.Writer != nil {
			o := at(*s.Writer)
			o.Writes = append(o.Writes, named{s.Stream, s.Space})
		}
	}
	return list
}

// connected reports whether NATS can be heard: else what has been published is not known.
func connected(r *replica.Replica) bool { return r.Conn() == nil || r.Conn().IsConnected() }

// heardLast returns when NATS was heard last, if it is gone: what is known of the streams is as of
// then. Zero: it is heard, or nothing is read of it.
func heardLast(streams []ingest.StreamStatus, connected bool) (last time.Time) {
	for i := range streams {
		if s := &streams[i]; (!connected || s.Silent != nil) && s.Heard.After(last) {
			last = s.Heard
		}
	}
	return last
}

var errDisconnected = errors.New("NATS is not connected: what has been published since is not known")

// streamShown shows the reading of a stream; without a connection it is not caught up.
func streamShown(s *ingest.StreamStatus, connected bool) streamOf {
	one := streamOf{
		Stream: s.Stream, Space: showSpace(s.Space), Created: s.Created.UnixMilli(), Position: number(s.Position), Last: number(s.Last),
		Lag: s.Lag, LagMs: s.LagTime.Milliseconds(), InFlight: s.InFlight, Bytes: s.InFlightBytes, CaughtUp: s.CaughtUp && connected && s.Silent == nil,
		Error: failure(cmp.Or(s.Err, s.Silent)), Stalled: failure(s.Stalled), Heard: s.Heard.UnixMilli(),
	}
	if !connected {
		one.Error = failure(errDisconnected)
	}
	return one
}

func sourceOf(g *replica.Reading) source {
	s := source{
		Space: showSpace(g.Space), Worker: number(g.Worker), Rank: g.DPRank, By: "nats", State: g.State.String(), Stale: g.Stale, LastID: number(g.LastID),
		Events: g.Events, Gaps: g.Gaps, Missed: g.Missed, Recoveries: g.Recoveries, Failed: g.Failed, LastEvent: moment(g.LastEvent), LastSeen: moment(g.LastSeen), Why: some(g.Why),
	}
	if g.Direct {
		s.By = "zmq"
	}
	return s
}

// attention says how much the source needs it.
func (s *source) attention() int {
	switch {
	case s.Stale:
		return 2
	case s.State != follow.Following.String():
		return 1
	}
	return 0
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// moment returns a time in ms; nil for none.
func moment(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	ms := t.UnixMilli()
	return &ms
}

func failure(err error) *string {
	if err == nil {
		return nil
	}
	return some(err.Error())
}
