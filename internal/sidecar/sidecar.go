package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	natsstream "github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// Sidecar is the running program.
type Sidecar struct {
	cfg     Config
	log     *slog.Logger
	metrics *obs.Metrics
	ranks   []uint32
	streams []*stream
	used    []io.Closer     // locks of what is kept
	feeds   []*zmqfeed.Feed // by stream; none with a socket
	socket  *socket         // nil with an engine's ZMQ
	group   publish.Group   // of the ranks
	broker  *broker.Broker
	up      atomic.Bool // the fields above do not change any more
	presence
	files tokenizerFiles

	service   *proc.Service
	stopAdmin func() error
	running   sync.WaitGroup // streams, feeds, the announcement, the socket
	stopping  atomic.Bool
}

// Run runs a sidecar until ctx ends, and stops it in order.
func Run(ctx context.Context, cfg Config, log *slog.Logger) (err error) {
	s := &Sidecar{cfg: cfg, log: log, metrics: obs.NewMetrics()}
	s.service = proc.NewService(cfg.Service, log, s.metrics, s.waiting)
	if s.ranks, err = cfg.check(); err != nil {
		return err
	}
	for _, texts := range []map[string]string{help(), publish.Help()} {
		for family, text := range texts {
			s.metrics.Help(family, text)
		}
	}
	if err := s.serveAdmin(ctx); err != nil {
		return err
	}
	err = errors.Join(s.follow(ctx), s.stop())
	for _, c := range s.used {
		err = errors.Join(err, c.Close())
	}
	return err
}

// follow follows the engine until ctx ends.
func (s *Sidecar) follow(ctx context.Context) (err error) {
	if err := s.load(); err != nil {
		return err
	}
	if s.socket != nil {
		defer s.socket.close()
	}
	// A server of its own beside each engine would be one that no replica reads.
	s.cfg.Broker.Log, s.cfg.Broker.Name, s.cfg.Broker.JoinOnly = s.log, "kvpublisher", true
	if s.broker, err = broker.Open(ctx, s.cfg.Broker); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before the broker was there
		}
		return err
	}
	if s.cfg.Transport == string(registry.JetStream) {
		if err := natsstream.Available(ctx, s.broker.Conn(), s.cfg.Namespace, s.cfg.space()); err != nil {
			return err
		}
	}
	s.up.Store(true)
	for i, st := range s.streams {
		s.running.Go(func() {
			if st.run(ctx) == nil && s.socket == nil {
				s.feeds[i].Run(ctx)
			}
		})
	}
	if s.cfg.Register {
		s.running.Go(func() { s.announce(ctx) })
		if s.cfg.Tokenizer != "" {
			s.running.Go(func() { s.keepFiles(ctx, func() uint64 { return s.broker.Conn().Stats().Reconnects }) })
		}
	}
	if s.socket != nil {
		s.running.Go(func() { s.socket.run(ctx) })
	}
	s.service.Started(nil) // what it waits for is asked by way of the streams
	<-ctx.Done()
	return nil
}

// stop ends what was started, along the events' way: nothing more is read, what
// was read is published and kept, then the broker goes, and what observers see
// last.
func (s *Sidecar) stop() error {
	return s.service.Stop(func() { s.stopping.Store(true) },
		proc.Step{Name: "publishing what is left and keeping the state", Run: func(ctx context.Context) error {
			s.running.Wait() // all of them end with follow's ctx
			if !s.up.Load() {
				return nil // the streams never ran
			}
			var all sync.WaitGroup
			errs := make([]error, len(s.streams))
			for i, st := range s.streams {
				all.Go(func() { errs[i] = st.stop(ctx) })
			}
			all.Wait()
			return errors.Join(errs...)
		}},
		proc.Step{Name: "leaving the registry", Run: s.leave},
		proc.Step{Name: "leaving the broker", Run: func(context.Context) error {
			if s.broker == nil {
				return nil
			}
			return s.broker.Close()
		}},
		proc.Step{Name: "closing HTTP", Run: func(context.Context) error { return s.stopAdmin() }},
	)
}

// load makes the streams and their inputs, each where it was.
func (s *Sidecar) load() error {
	for i, r := range s.ranks {
		kept, used, err := s.cfg.storeOf(r)
		if err != nil {
			return err
		}
		s.used = append(s.used, used)
		st, err := newStream(streamConfig{
			dpRank: r, blockSize: s.cfg.BlockSize, pooled: s.cfg.pooled(), identity: s.cfg.identity(r), store: kept,
			open:     func(ctx context.Context, o opening) (sink, error) { return s.openSink(ctx, r, o) },
			position: func() []byte { return s.position(i) },
			every:    s.cfg.SaveEvery, retry: time.Second,
			log: s.log, m: newStreamMeters(s.metrics.Set, r),
		})
		if err != nil {
			return err
		}
		s.streams = append(s.streams, st)
	}
	if s.cfg.Socket != "" {
		var err error
		s.socket, err = newSocket(&s.cfg, s.streams, s.log, s.metrics)
		return err
	}
	for _, st := range s.streams {
		feed, err := s.feed(st)
		if err != nil {
			return err
		}
		s.feeds = append(s.feeds, feed)
	}
	s.feedMetrics()
	return nil
}

func (s *Sidecar) position(i int) []byte {
	if s.socket != nil {
		return s.socket.inputs[i].position()
	}
	return s.feeds[i].Position(nil)
}

// feed makes the feed of a stream.
func (s *Sidecar) feed(st *stream) (*zmqfeed.Feed, error) {
	rank := st.cfg.dpRank
	endpoint, err := zmqfeed.RankEndpoint(s.cfg.Engine, rank)
	if err != nil {
		return nil, fmt.Errorf("--engine: %w", err)
	}
	replay, err := zmqfeed.RankEndpoint(s.cfg.Replay, rank)
	if err != nil {
		return nil, fmt.Errorf("--engine-replay: %w", err)
	}
	snapshot, err := zmqfeed.RankEndpoint(s.cfg.Snapshot, rank)
	if err != nil {
		return nil, fmt.Errorf("--engine-snapshot: %w", err)
	}
	loras, err := parseLoras(s.cfg.Loras)
	if err != nil {
		return nil, fmt.Errorf("--lora-ids: %w", err)
	}
	cfg := zmqfeed.Config{
		Endpoint: endpoint, Replay: replay, Snapshot: snapshot, Topic: s.cfg.Topic, ExactTopic: s.cfg.ExactTopic, Position: st.start, Incomplete: st.incomplete,
		Decoder: engine.Config{BlockSize: s.cfg.BlockSize, Rank: rank, Eagle: s.cfg.Eagle, Loras: loras, Remote: st.cfg.pooled[event.External]},
	}
	feed, err := zmqfeed.New(cfg, st)
	if errors.Is(err, zmqfeed.ErrPosition) {
		s.log.Warn("the kept position is not used, the stream begins anew", "dp_rank", rank, "error", err)
		st.cfg.m.refused.Inc()
		st.start, cfg.Position = nil, nil
		feed, err = zmqfeed.New(cfg, st)
	}
	return feed, err
}

// published is a Publisher as a stream's sink.
type published struct {
	*publish.Publisher
	dpRank uint32
}

func (p published) last() uint64 {
	for _, pos := range p.Positions() {
		if pos.DPRank == p.dpRank {
			return pos.ID
		}
	}
	return 0
}

func (p published) setIncomplete(incomplete bool) { p.SetIncomplete(p.dpRank, incomplete) }

// openSink opens the publisher of one rank and incarnation. Its heartbeats name
// the rank from the start: so readers learn of a new incarnation.
func (s *Sidecar) openSink(ctx context.Context, dpRank uint32, o opening) (sink, error) {
	transport := publish.JetStream
	if s.cfg.Transport == string(registry.Core) {
		transport = publish.CoreNATS
	}
	p, err := publish.Open(ctx, publish.Config{
		Transport: transport, Holds: func(_ uint32, add func(*event.Event, []uint32)) { o.set.dump(add) },
		Conn: s.broker.Conn(), Namespace: s.cfg.Namespace, Space: s.cfg.space(), Worker: event.WorkerID(s.cfg.Worker),
		Incarnation: o.incarnation, Resume: []event.Position{{DPRank: dpRank, ID: o.last, Incomplete: o.incomplete}},
		Stream: s.streamConfig(), Group: &s.group, StreamWait: max(s.cfg.StreamWait, 1), Metrics: s.metrics.Set, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	return published{p, dpRank}, nil
}

func (s *Sidecar) streamConfig() publish.StreamConfig {
	c := s.cfg.Stream
	c.Replicas, c.Batches = s.cfg.Broker.Replicas, s.cfg.Broker.SyncAlways
	return c
}

// waiting says what readiness waits for; "" for nothing.
func (s *Sidecar) waiting() string {
	switch {
	case s.stopping.Load():
		return "shutting down"
	case !s.up.Load():
		return "not connected to NATS"
	}
	for _, st := range s.streams {
		if why := st.waiting(); why != "" {
			return why
		}
	}
	if s.socket != nil {
		return s.socket.waiting()
	}
	return ""
}

// misfits says which ranks' blocks are of another size than was set; "" for none.
func (s *Sidecar) misfits() string {
	var all []string
	if s.up.Load() {
		for _, st := range s.streams {
			if why := st.misfit(); why != "" {
				all = append(all, why)
			}
		}
	}
	return strings.Join(all, "; ")
}
