package query

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/doctor"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
)

// workerList is the answer of GET /v1/workers: what each worker holds and how it is
// registered, sorted. It is made while it is read, one worker after the other: that of
// 10,000 workers is 60 MB.
type workerList struct {
	conn net.Conn // nil: it has no deadline
	wait time.Duration
	view *view

	spaces  []event.Space    // still to come, the first of them as far as below
	begun   bool             // spaces[0]
	some    bool             // of its workers were written
	entries []registry.Entry // of all spaces
	order   []int32          // of those of spaces[0] and later ones: sorted by space and worker
	ranks   []shard.RankStat // of spaces[0], still to come, sorted
	streams []Stream
	byRank  map[rankKey]int32 // in streams
	pools   map[poolKey]*doctor.Pool

	ready   bytes.Buffer // for the client
	encoder *json.Encoder
	first   bool // space
	ended   bool
}

// rankKey names a rank of a space.
type rankKey struct {
	space event.Space
	rank  shard.RankID
}

// poolKey names the workers of a model that a group has, with blocks of whatever size.
type poolKey struct{ model, group string }

// answerWorkers answers GET /v1/workers?model=….
func (s *Server) answerWorkers(ctx *fasthttp.RequestCtx, v *view) *edge.Problem {
	if p := noArguments(ctx, "model"); p != nil {
		return p
	}
	if ctx.SetContentType(edge.TypeJSON); ctx.IsHead() {
		return nil // fasthttp (1.74) ends also what has no body with an empty chunk
	}
	l := s.listWorkers(v, string(ctx.QueryArgs().Peek("model")))
	l.conn, l.wait = ctx.Conn(), s.cfg.WriteTimeout
	ctx.SetBodyStream(l, -1)
	return nil
}

// listWorkers begins the list; an empty model means every model.
func (s *Server) listWorkers(v *view, model string) *workerList {
	l := &workerList{view: v, first: true}
	l.encoder = json.NewEncoder(&l.ready)
	l.encoder.SetEscapeHTML(false)
	wanted := func(sp event.Space) bool { return model == "" || model == sp.Model }
	if v.registry != nil {
		l.entries = v.registry.Snapshot(true)
	}
	for i := range l.entries {
		l.join(&l.entries[i])
		if sp := l.entries[i].Key.Space; wanted(sp) {
			l.spaces, l.order = append(l.spaces, sp), append(l.order, int32(i))
		}
	}
	slices.SortFunc(l.order, func(i, j int32) int {
		a, b := &l.entries[i].Key, &l.entries[j].Key
		return cmp.Or(compareSpaces(a.Space, b.Space), cmp.Compare(a.Worker, b.Worker))
	})
	for _, sp := range v.index.Spaces() {
		if wanted(sp) {
			l.spaces = append(l.spaces, sp)
		}
	}
	slices.SortFunc(l.spaces, compareSpaces)
	l.spaces = slices.Compact(l.spaces)
	if s.deps.Streams != nil {
		l.streams = s.deps.Streams()
		l.byRank = make(map[rankKey]int32, len(l.streams))
		for i := range l.streams {
			l.byRank[rankKey{l.streams[i].Space, l.streams[i].RankID}] = int32(i)
		}
	}
	return l
}

// join puts a worker into its pool.
func (l *workerList) join(e *registry.Entry) {
	if !e.Present() {
		return
	}
	if l.pools == nil {
		l.pools = make(map[poolKey]*doctor.Pool)
	}
	k := poolKey{e.Model, e.Group}
	if l.pools[k] == nil {
		l.pools[k] = doctor.NewPool()
	}
	l.pools[k].Add(&e.Worker, nil)
}

// warnings says what does not fit together in how a worker is registered.
func (l *workerList) warnings(e *registry.Entry) (list []client.Warning) {
	if !e.Present() {
		return nil
	}
	for _, f := range doctor.Registered(e, l.pools[poolKey{e.Model, e.Group}]) {
		list = append(list, client.Warning{Check: f.Check, Level: string(f.Level), Found: f.Found, Do: f.Do})
	}
	return list
}

func compareSpaces(a, b event.Space) int {
	return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.BlockSize, b.BlockSize), cmp.Compare(a.Group, b.Group))
}

// Read implements io.Reader.
func (l *workerList) Read(p []byte) (int, error) {
	for l.ready.Len() < len(p) && !l.ended {
		l.step()
	}
	if l.ready.Len() == 0 {
		return 0, io.EOF
	}
	if l.conn != nil { // the limit is for each part of the answer, not for all of it
		if err := l.conn.SetWriteDeadline(time.Now().Add(l.wait)); err != nil {
			return 0, err
		}
	}
	return l.ready.Read(p)
}

// step writes one more worker, or what comes between.
func (l *workerList) step() {
	switch {
	case len(l.spaces) == 0:
		if l.first {
			l.ready.WriteString(`{"spaces":[`)
		}
		l.ready.WriteString("]}\n")
		l.ended = true
	case !l.begun:
		l.beginSpace()
	default:
		w := l.next()
		if w == nil {
			l.ready.WriteString("]}")
			l.spaces, l.begun = l.spaces[1:], false
			return
		}
		if l.some {
			l.ready.WriteByte(',')
		}
		l.some = true
		l.encode(w, "\n")
	}
}

// encode writes what v is as JSON, without that end.
func (l *workerList) encode(v any, end string) {
	if l.encoder.Encode(v) == nil { // these have nothing that JSON lacks
		l.ready.Truncate(l.ready.Len() - len(end))
	}
}

func (l *workerList) beginSpace() {
	sp := l.spaces[0]
	l.begun, l.some, l.ranks = true, false, nil
	var pools []client.Pool
	if space := l.view.index.Space(sp); space != nil {
		l.ranks, pools = slices.DeleteFunc(space.Ranks(), isPool), poolsOf(space.Pools())
	}
	if l.first {
		l.ready.WriteString(`{"spaces":[`)
	} else {
		l.ready.WriteByte(',')
	}
	l.first = false
	l.encode(client.WorkerSpace{Model: sp.Model, Group: sp.Group, BlockSize: int(sp.BlockSize), Pools: pools, Workers: []client.Worker{}}, "]}\n")
}

// next returns the space's next worker; nil: there is none.
func (l *workerList) next() *client.Worker {
	var e *registry.Entry
	if len(l.order) > 0 {
		if e = &l.entries[l.order[0]]; e.Key.Space != l.spaces[0] {
			e = nil // of the next space
		}
	}
	var id uint64
	switch {
	case e != nil && (len(l.ranks) == 0 || e.Key.Worker <= l.ranks[0].Worker):
		id = e.Key.Worker
	case len(l.ranks) > 0:
		id, e = l.ranks[0].Worker, nil
	default:
		return nil
	}
	w := &client.Worker{ID: id, State: "unregistered", Ranks: []client.WorkerRank{},
		Drained: l.view.registry != nil && l.view.registry.IsDrained(id)}
	if e != nil {
		w.State, w.Info, w.Warnings = e.State.String(), registrationOf(e), l.warnings(e)
		l.order = l.order[1:]
	}
	for ; len(l.ranks) > 0 && l.ranks[0].Worker == id; l.ranks = l.ranks[1:] {
		h := &l.ranks[0]
		stream := l.stream(h.RankID)
		w.Ranks = append(w.Ranks, client.WorkerRank{
			DPRank: h.DPRank, Device: uint64(h.Held[event.Device]), HostPinned: uint64(h.Held[event.HostPinned]),
			Disk: uint64(h.Held[event.Disk]), External: uint64(h.Held[event.External]), Inferred: uint64(h.Inferred),
			Stream: stream,
		})
		for _, n := range h.Held {
			w.Blocks += uint64(n)
		}
		if stream != nil && stream.State == Contested {
			w.Conflict = stream.LastError
		}
	}
	return w
}

// stream says how the reading of a rank of the present space stands; nil: it is not read.
func (l *workerList) stream(id shard.RankID) *client.Stream {
	i, ok := l.byRank[rankKey{l.spaces[0], id}]
	if !ok {
		return nil
	}
	st := &l.streams[i]
	info := &client.Stream{State: st.State, Stale: st.Stale, LastID: st.LastID, Lag: st.Lag, LagSeconds: st.LagTime.Seconds(), LastError: st.LastError}
	if st.Counts != nil {
		info.Counts = st.Counts()
	}
	if !st.LastSeen.IsZero() {
		info.LastSeen = &st.LastSeen
	}
	if !st.Heard.IsZero() {
		info.AsOf = &st.Heard
	}
	if !st.AskNext.IsZero() {
		info.AskNext = &st.AskNext
	}
	return info
}

func poolsOf(list []shard.PoolStat) (pools []client.Pool) {
	for _, p := range list {
		pools = append(pools, client.Pool{Name: p.Name, Blocks: uint64(p.Blocks), Workers: p.Workers})
	}
	return pools
}

func registrationOf(e *registry.Entry) *client.Registration {
	r := &client.Registration{
		Name: e.Name, Sources: []string{}, Role: string(e.Role), Transport: string(e.Transport), Ranks: e.Ranks, Tiers: e.Tiers,
		TotalBlocks: e.TotalBlocks, HashScheme: e.HashScheme, EngineScheme: e.EngineScheme, LeaseSeconds: e.Lease.Seconds(),
		Mismatch: e.Mismatch, Conflict: e.Conflict, LeftBy: e.LeftBy.String(), DrainedBy: e.DrainedBy,
	}
	for _, source := range []struct {
		is   bool
		name string
	}{{e.Announced, "announced"}, {e.HTTP, "http"}, {e.Static, "static"}} {
		if source.is {
			r.Sources = append(r.Sources, source.name)
		}
	}
	for i := range e.Pools {
		r.Pools = append(r.Pools, e.Pools[i].Name)
	}
	if e.Incarnation != 0 {
		r.Incarnation = strconv.FormatUint(e.Incarnation, 10)
	}
	if !e.LastSeen.IsZero() {
		age := max(0, time.Since(e.LastSeen).Seconds())
		r.LeaseAge = &age
	}
	if !e.Left.At.IsZero() {
		r.LeftAt = &e.Left.At
	}
	if e.Drained {
		r.DrainedSince = &e.DrainedSince
	}
	for rank, l := range e.Listeners {
		if r.Listeners == nil {
			r.Listeners = make(map[uint32]client.Listener)
		}
		r.Listeners[rank] = client.Listener{Endpoint: l.Endpoint, Status: l.Status, LastError: l.Error}
	}
	return r
}
