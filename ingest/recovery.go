package ingest

import (
	"context"
	"errors"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/pace"
	"github.com/kvatlas/kvatlas/shard"
)

// Replacer is an Applier that can replace a rank's state as a whole. *shard.Space
// is one. With another Applier a rank is recovered by events only.
type Replacer interface {
	Replace(ctx context.Context, id shard.RankID) (*shard.Replacement, error)
}

// recoveries asks publishers for what ranks missed. Its methods are safe for
// concurrent use; each recovery has a goroutine, which ends with ctx.
type recoveries struct {
	cfg     *Config
	m       *meters
	ctx     context.Context
	running *sync.WaitGroup
	places  *places
	quotas  quotas
	past    pastRecoveries

	// What tests replace.
	ask   func(ctx context.Context, subject string, request []byte) ([]byte, error)
	after func(time.Duration) <-chan time.Time
	now   func() time.Time
	seed  uint64 // of the chance in waits
}

func newRecoveries(ctx context.Context, cfg *Config, m *meters, running *sync.WaitGroup) *recoveries {
	return &recoveries{
		cfg: cfg, m: m, ctx: ctx, running: running, places: newPlaces(cfg.Recoveries),
		ask: func(ctx context.Context, subject string, request []byte) ([]byte, error) {
			msg, err := cfg.Conn.RequestWithContext(ctx, subject, request)
			if err != nil {
				return nil, err
			}
			return msg.Data, nil
		},
		after: time.After,
		now:   time.Now,
		seed:  rand.Uint64(),
	}
}

// rankSeed returns the rank's seed, by that of the replica.
func rankSeed(of uint64, id *RankID) uint64 {
	return of ^ bits.RotateLeft64(id.Worker*0x9E3779B97F4A7C15, 32) ^ uint64(id.DPRank)
}

// rankRecovery is one rank's recovery. Its goroutine owns it; the
// partition reads it once it has ended.
type rankRecovery struct {
	*recoveries
	partition *partition
	rank      *rank // the partition's: not to be looked into
	id        RankID
	cause     Cause
	ctx       context.Context
	cancel    context.CancelFunc
	subject   string

	began       time.Time
	tries       pace.Pace // between attempts
	incarnation uint64    // of the rank, 0: any
	hadPosition bool      // the rank has a state
	from        uint64    // next event to ask for; 0: a dump
	busy        int

	answered atomic.Bool // it was, once at least

	dumps      time.Time // no dump is taken before
	dumped     bool      // a dump was taken
	refused    bool      // the memory budget refused some of the dump
	unresolved bool      // nobody knows the position of some blocks of an incomplete stream
}

// dump is what a recovery got instead of events.
type dump struct {
	follow.Dump
	state     *shard.Replacement
	outcome   core.Outcome
	committed bool
	err       error // why it is not
}

// start begins the recovery of the partition's rank that the effect asks for.
func (c *recoveries) start(l *partition, r *rank, e *follow.Effect) *rankRecovery {
	v := &rankRecovery{
		recoveries: c, partition: l, rank: r, id: r.id, cause: e.Cause, began: c.now(),
		subject:     stream.RecoverSubject(c.cfg.Namespace, r.id.Space, r.id.Worker),
		incarnation: e.Ask.Incarnation, from: e.Ask.From, hadPosition: e.Ask.Known, dumps: e.Ask.NoDump,
	}
	v.ctx, v.cancel = context.WithCancel(c.ctx)
	c.running.Go(v.run)
	return v
}

// run tries until the rank is recovered, or often enough.
func (v *rankRecovery) run() {
	defer v.cancel()
	v.m.recovering.Inc()
	var err error
	for failures := 0; failures < v.cfg.RecoverAttempts && v.busy < maxBusy; {
		if err != nil {
			v.pause(err)
		}
		if err = v.places.take(v.ctx, v.subject); err != nil {
			break
		}
		if v.places.silentFor(v.subject, v.now()) <= 0 {
			err = v.attempt()
		} else {
			err = errNoAnswer // as another rank of it has found out
		}
		v.places.giveBack(v.subject)
		if err == nil || v.ctx.Err() != nil {
			break
		}
		v.m.recoveryRetries.Inc()
		if errors.Is(err, errBusy) {
			v.busy++ // it is alive: that is no failure
		} else {
			failures++
		}
	}
	if v.ctx.Err() != nil {
		err = context.Canceled
	}
	v.m.recovering.Dec()
	took := v.now().Sub(v.began)
	v.m.recovered(v.cause, recoveryOutcome(err), took)
	v.past.add(Recovery{RankID: v.id, Cause: v.cause, Began: v.began, Took: took, Dump: v.dumped, Err: err})
	v.post(func(ctx context.Context) { v.partition.ended(ctx, v.rank, v, err) })
}

// Bounds on how long and how often a recovery waits for other ranks' dumps.
const (
	busyWait = time.Second
	maxBusy  = 200
)

// pause waits after a failed try.
func (v *rankRecovery) pause(err error) {
	most := v.cfg.RecoverMax
	if errors.Is(err, errBusy) {
		most = min(most, busyWait)
	}
	now := v.now()
	select {
	case <-v.after(max(v.tries.Later(now, now, min(v.cfg.RecoverMin, most), most, rankSeed(v.seed, &v.id)), v.places.silentFor(v.subject, now))):
	case <-v.ctx.Done():
	}
}

// post has the partition call f, unless the recovery is no longer the rank's, and
// reports whether it was called.
func (v *rankRecovery) post(f func(ctx context.Context)) bool {
	var claimed atomic.Bool // by the partition, or by who gives up
	called := make(chan bool, 1)
	select {
	case v.partition.inbox <- func(ctx context.Context) {
		if !claimed.CompareAndSwap(false, true) {
			return
		}
		mine := v.rank.recovery == v
		if mine {
			f(ctx)
		}
		called <- mine
	}:
	case <-v.ctx.Done():
		return false
	}
	select {
	case ok := <-called:
		return ok
	case <-v.ctx.Done():
		if claimed.CompareAndSwap(false, true) {
			return false
		}
		return <-called
	}
}
