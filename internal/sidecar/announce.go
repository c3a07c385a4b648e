package sidecar

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/modelfiles"
	"github.com/kvatlas/kvatlas/internal/pace"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/registry"
)

// presence is the worker's place in the registry.
type presence struct {
	registered   atomic.Bool
	announcement atomic.Pointer[registry.Announcement] // nil: there is none yet
}

// announce keeps the worker in the registry until ctx ends.
func (s *Sidecar) announce(ctx context.Context) {
	s.metrics.Gauge("kvatlas_publisher_registered", help()["kvatlas_publisher_registered"], func() float64 {
		if s.registered.Load() {
			return 1
		}
		return 0
	})
	cfg := registry.AnnounceConfig{Conn: s.broker.Conn(), Namespace: s.cfg.Namespace, Lease: s.cfg.Lease, Log: s.log,
		Bucket: registry.BucketConfig{Replicas: s.cfg.Broker.Replicas}}
	said := s.worker()
	var news news
	trouble := obs.NewLimited(s.log, complaintEvery, nil)
	for {
		a, err := s.announcement.Load(), ctx.Err()
		switch now := s.worker(); {
		case err != nil:
		case a == nil:
			a, err = registry.Register(ctx, now, cfg)
			s.announcement.Store(a)
			said = now
		case news.due(time.Now(), &now, &said):
			if err = a.Update(ctx, now); err == nil {
				said = now
			}
		default:
			err = a.Err()
		}
		if err != nil && ctx.Err() == nil {
			trouble.Warn(err.Error(), "the worker is not announced, trying again", slog.Any("error", err))
		}
		s.registered.Store(a != nil && err == nil)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			if a != nil {
				a.Stop()
			}
			return
		}
	}
}

// leave ends the worker's registration, once everything is published: at once if its engine is gone, as where both
// end with their pod. Else its lease is left to run out, so that a sidecar which restarts meanwhile costs nothing.
func (s *Sidecar) leave(ctx context.Context) error {
	a := s.announcement.Load()
	if a == nil || slices.ContainsFunc(s.streams, func(st *stream) bool { return !st.gone() }) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Lease/3) // as long as a heartbeat may take
	defer cancel()
	if err := a.Close(ctx); err != nil {
		s.log.Warn("the engine is gone, and its registration lasts until its lease is over", "error", err)
	}
	return nil
}

// What is only seen of the engine (registry.Seen) is announced again when it changes: so many
// times at once, and then as often as that many times in the span. An engine whose errors have
// another text each time, or whose tiers fill and empty, would have everybody who reads the
// registry read it once a second.
const (
	seenAtOnce = 8
	seenSpan   = 4 * time.Minute
)

// news says when a worker is to be announced again.
type news struct{ seen pace.Quota }

func (n *news) due(at time.Time, now, said *registry.Worker) bool {
	if now.Incarnation != said.Incarnation || now.HashScheme != said.HashScheme || now.Hybrid != said.Hybrid || !slices.Equal(now.CacheGroups, said.CacheGroups) ||
		modelfiles.ID(now.Tokenizer) != modelfiles.ID(said.Tokenizer) {
		return true
	}
	return !reflect.DeepEqual(now.Seen, said.Seen) && n.seen.Take(at, seenAtOnce, seenSpan) == 0
}

// complaintEvery is how often the log says that the worker is still not announced, for the same reason.
const complaintEvery = 10 * time.Second

// incarnation returns that of the only rank. Of several each has its own: then
// the streams' own heartbeats tell, and this is 0.
func (s *Sidecar) incarnation() uint64 {
	if len(s.streams) != 1 {
		return 0
	}
	return s.streams[0].shownIncarnation.Load()
}

// eagle reports whether blocks are hashed with the token after each: as is set, or as a
// rank's events show.
func (s *Sidecar) eagle() bool {
	return s.cfg.Eagle || slices.ContainsFunc(s.streams, func(st *stream) bool { return st.eagle.Load() })
}

// hybrid reports whether the model has caches besides full attention: as is set, or as a
// rank's events show.
func (s *Sidecar) hybrid() bool {
	return s.cfg.Hybrid || slices.ContainsFunc(s.streams, func(st *stream) bool { return st.hybrid.Load() })
}

// cacheGroups returns what is known of the model's caches: as is set, and as the ranks' events
// tell, which are of one model.
func (s *Sidecar) cacheGroups() []event.CacheGroup {
	groups, _ := parseGroups(s.cfg.CacheGroups) // check has read them
	for _, st := range s.streams {
		if seen := st.groups.Load(); seen != nil {
			groups = event.MergeCacheGroups(groups, *seen)
		}
	}
	return groups
}

// worker returns what is announced.
func (s *Sidecar) worker() registry.Worker {
	w := registry.Worker{
		ID: event.WorkerID(s.cfg.Worker), Model: s.cfg.Model, BlockSize: uint32(s.cfg.BlockSize), Group: s.cfg.Group,
		EngineScheme: s.cfg.EngineScheme, Ranks: s.ranks, TotalBlocks: uint64(s.cfg.TotalBlocks),
		Role: registry.Role(s.cfg.Role), Transport: registry.Transport(s.cfg.Transport), Incarnation: s.incarnation(),
		HashScheme: registry.Scheme(uint32(s.cfg.BlockSize)), KVTransfer: registry.KVTransfer(s.cfg.KVTransfer), Credential: s.cfg.Credential,
		MaxBatchedTokens: uint64(s.cfg.MaxBatched), Hybrid: s.hybrid(), CacheGroups: s.cacheGroups(), CPU: s.cfg.CPU, Tokenizer: s.files.named(),
		Endpoints: registry.Endpoints{HTTP: s.cfg.EngineHTTP, Bootstrap: s.cfg.Bootstrap, Peer: s.cfg.Peer}, Tiers: s.cfg.Tiers, Seen: s.seen(),
	}
	w.Loras, _ = parseLoras(s.cfg.Loras) // check has read them
	w.Pools, _ = parsePools(s.cfg.Pools)
	if s.eagle() {
		w.HashScheme = registry.EagleScheme(w.BlockSize)
	}
	if _, err := strconv.ParseUint(s.cfg.Worker, 10, 64); err != nil {
		w.Name = s.cfg.Worker
	}
	return w
}
