package probe

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/event"
	decode "github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
	"github.com/kvatlas/kvatlas/internal/doctor"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/registry"
)

// ears hear what one worker publishes.
type ears struct {
	g     *gathering
	w     *registry.Worker
	subs  []*nats.Subscription
	stop  context.CancelFunc
	feeds map[uint32]*zmqfeed.Feed
	all   sync.WaitGroup // of the feeds

	mu      sync.Mutex
	changed chan struct{} // closed and made anew when something was heard
	wanted  map[uint64]bool
	ranks   map[uint32]*heard
	fault   string // why nothing can be heard
}

// heard is what one rank published.
type heard struct {
	wanted map[uint64]block // by local hash
	others int              // blocks stored that nobody waits for
	seen   registry.Seen    // of a feed
}

type block struct {
	at     time.Time
	engine uint64
}

// listen begins to listen to a worker.
func (g *gathering) listen(ctx context.Context, w *registry.Worker) *ears {
	e := &ears{g: g, w: w, changed: make(chan struct{}), wanted: map[uint64]bool{}, ranks: map[uint32]*heard{}, stop: func() {}, feeds: map[uint32]*zmqfeed.Feed{}}
	switch w.Transport {
	case registry.JetStream, registry.Core:
		subject := stream.Subject(g.cfg.Namespace, w.Space(), w.ID)
		for _, s := range []string{subject, subject + ".*"} { // the parts of a divided space, and without a stream
			sub, err := g.cfg.Conn.Subscribe(s, func(m *nats.Msg) { e.message(m.Data) })
			if err != nil {
				e.fault = err.Error()
				continue
			}
			e.subs = append(e.subs, sub)
		}
		if err := g.cfg.Conn.FlushTimeout(g.cfg.Answer); err != nil {
			e.fault = err.Error()
		} else if err := g.cfg.Conn.LastError(); errors.Is(err, nats.ErrPermissionViolation) {
			e.fault = "this user of NATS may not listen to it (docs/security.md): " + short(err.Error())
		}
	case registry.ZMQ:
		ctx, e.stop = context.WithCancel(ctx)
		for _, rank := range w.Ranks {
			e.follow(ctx, rank)
		}
	case registry.NoEvents:
		e.fault = "it publishes no events"
	}
	return e
}

// follow reads an engine's own socket, as a replica does.
func (e *ears) follow(ctx context.Context, rank uint32) {
	f, err := zmqfeed.New(zmqfeed.Config{
		Endpoint: e.w.Endpoints.Events[rank], Replay: e.w.Endpoints.Replay[rank],
		Decoder: decode.Config{BlockSize: int(e.w.BlockSize), Rank: rank, Lora: e.w.Lora, Salt: e.w.Salt, Loras: e.w.Loras},
	}, ear{e, rank})
	if err != nil {
		e.of(rank).seen.Error = err.Error()
		return
	}
	e.feeds[rank] = f
	e.all.Go(func() { f.Run(ctx) })
}

func (e *ears) close() {
	for _, s := range e.subs {
		_ = s.Unsubscribe() // the connection may be gone
	}
	e.stop()
	e.all.Wait()
}

// of returns what a rank published. e.mu is held, or nobody listens yet.
func (e *ears) of(rank uint32) *heard {
	h := e.ranks[rank]
	if h == nil {
		h = &heard{wanted: map[uint64]block{}, seen: registry.Seen{DPRank: rank}}
		e.ranks[rank] = h
	}
	return h
}

// expect says which blocks are waited for.
func (e *ears) expect(local []uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range local {
		e.wanted[l] = true
	}
}

// message takes what a publisher sent. What is no message of events is not for it.
func (e *ears) message(data []byte) {
	batches, err := event.Decode(data)
	if err != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range batches {
		e.batchLocked(&batches[i])
	}
}

func (e *ears) batchLocked(b *event.Batch) {
	now := time.Now()
	for i := range b.Events {
		ev := &b.Events[i]
		if ev.Kind != event.Stored {
			continue
		}
		h := e.of(ev.DPRank)
		for j, l := range ev.Local {
			if !e.wanted[l] {
				h.others++
				e.g.meets(e.w, l)
			} else if _, ok := h.wanted[l]; !ok {
				h.wanted[l] = block{now, ev.Engine[j]}
			}
		}
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

// engineHash returns what the engine of a rank calls a block; 0: it was not heard.
func (e *ears) engineHash(rank uint32, local uint64) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.of(rank).wanted[local].engine
}

// wait waits until a rank has stored the blocks, and returns when the last one was heard.
func (e *ears) wait(ctx context.Context, rank uint32, local []uint64, within time.Duration) (last time.Time) {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for {
		e.mu.Lock()
		h, changed, n := e.of(rank), e.changed, 0
		for _, l := range local {
			if b, ok := h.wanted[l]; ok {
				if n++; b.at.After(last) {
					last = b.at
				}
			}
		}
		e.mu.Unlock()
		if n == len(local) || e.fault != "" {
			return last
		}
		select {
		case <-changed:
		case <-deadline.C:
			return last
		case <-ctx.Done():
			return last
		}
	}
}

// heard returns how many of the blocks the rank has stored, and another rank that has
// them all, where this one has none.
func (e *ears) heard(rank uint32, local []uint64) (n, other int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	count := func(h *heard) (n int) {
		for _, l := range local {
			if _, ok := h.wanted[l]; ok {
				n++
			}
		}
		return n
	}
	n, other = count(e.of(rank)), -1
	for r, h := range e.ranks {
		if n == 0 && r != rank && count(h) == len(local) {
			other = int(r)
		}
	}
	return n, other
}

// tell adds what was heard beside the prompts.
func (e *ears) tell(r *doctor.Rank) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.of(r.DPRank)
	r.Others, r.Reading, r.Seen = h.others, e.fault, h.seen
	f := e.feeds[r.DPRank]
	if f == nil {
		return
	}
	s := f.Stats()
	r.Seen.Batches, r.Seen.Salted = s.Batches > 0, s.Salted
	r.Seen.Replay = registry.ReplayOf(e.w.Endpoints.Replay[r.DPRank], s.ReplayDown, e.w.Endpoints.Snapshot[r.DPRank], s.SnapshotDown)
	r.Seen.LeftOut, r.Seen.Lost = s.Reasons()
}

// ear is a feed's handler.
type ear struct {
	e    *ears
	rank uint32
}

func (r ear) Batch(_ uint64, b *event.Batch) (unknownParent, refused bool) {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	if b.OtherSize != 0 {
		r.e.of(r.rank).seen.BlockSize = uint32(b.OtherSize)
	}
	r.e.batchLocked(b)
	return false, false
}

// Snapshot is never called: none is asked for, as it may have what the probes made.
func (ear) Snapshot(uint64, iter.Seq[*event.Batch]) (unplaced, refused bool) { return false, false }

func (ear) Restart(follow.Sign) {}
func (ear) Gap(zmqfeed.Gap)     {}

func (r ear) State(st zmqfeed.State) {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	switch s := &r.e.of(r.rank).seen; {
	case st.Err != nil:
		s.Error = short(st.Err.Error())
	case st.Phase == zmqfeed.Live:
		s.Error = ""
	}
}
