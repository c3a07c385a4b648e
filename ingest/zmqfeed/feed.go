package zmqfeed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
	"github.com/kvatlas/kvatlas/internal/pace"
)

// errRestarted ends a session whose queue holds what an ended process said.
var errRestarted = errors.New("the engine restarted")

// Feed follows one engine's stream. Its methods but Stats, Status and Queued belong to
// the goroutine that calls Run, the Handler's calls included.
type Feed struct {
	Follower
	cfg      Config
	dec      *engine.Decoder
	leftPast engine.Stats // of decoders before
	reply    item         // of replays, reused
	counters counters

	ctx       context.Context  // Run's
	asked     *follow.Question // by the rank, and not answered yet
	replaying bool             // an answer is read
	rested    time.Time        // no snapshot is asked for before
	over      bool             // the session is: its queue is of an ended process

	connect pace.Pace // connections that broke
	anew    pace.Pace // restarts; rest is how long to wait after the last
	rest    time.Duration
	replays pace.Quota
	seed    uint64 // of the chance in waits
	// dial and now are zmtp.Dial and time.Now, but in tests.
	dial func(ctx context.Context, endpoint string, t zmtp.Type, o zmtp.Options) (*zmtp.Conn, error)
	now  func() time.Time
}

// New returns a feed, which Run then follows.
func New(cfg Config, h Handler) (*Feed, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	dec, err := engine.NewDecoder(cfg.Decoder)
	if err != nil {
		return nil, fmt.Errorf("engine feed: %w", err)
	}
	f := &Feed{cfg: cfg, dec: dec, seed: rand.Uint64(), dial: zmtp.Dial, now: time.Now}
	f.lost, f.restarted, f.other = f.whyLost, f.begunAnew, f.carryOut
	source := follow.Replay
	if cfg.Replay == "" {
		source = follow.Engine
	}
	f.begin(h, &follow.Limits{
		Source: source, Snapshots: cfg.Snapshot != "", HoldMessages: 1, HoldBytes: cfg.MaxMessage, RecoverMessages: 1, // more waits in the queue
		GapWait: cfg.RetryMax, RecoverMin: cfg.RetryMin, RecoverMax: cfg.ReplayPause,
	}, f.seed)
	f.told = follow.Away
	f.Step((*follow.Rank).Broken) // it is not there yet
	if err := f.setPosition(cfg.Position); err != nil {
		return nil, err
	}
	return f, nil
}

// Run follows the stream, over broken connections and the engine's restarts,
// until ctx ends. Once it has returned nothing of the feed runs any more.
// Call it once.
func (f *Feed) Run(ctx context.Context) {
	f.ctx = ctx
	f.h.State(State{Phase: Connecting})
	for ctx.Err() == nil {
		began := time.Now()
		err := f.session(ctx)
		f.told = follow.Away // at once, and why
		f.Step((*follow.Rank).Broken)
		if ctx.Err() != nil {
			return
		}
		f.tell(follow.Away, err)
		now := time.Now()
		if now.Sub(began) > f.cfg.RetryMax {
			f.connect.Progress()
		}
		pause := f.rest
		if !errors.Is(err, errRestarted) {
			pause = f.connect.Later(now, now, f.cfg.RetryMin, f.cfg.RetryMax, f.seed)
		}
		sleep(ctx, pause)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// carryOut does what follows for the connection.
func (f *Feed) carryOut(e *follow.Effect) {
	switch e.Kind {
	case follow.Skip:
		f.count(func(c *Stats) { c.Gaps, c.Missed = c.Gaps+1, c.Missed+e.To-e.From+1 })
	case follow.Drop:
		switch {
		case e.Reason != follow.Duplicate:
		case f.replaying:
			f.count(func(c *Stats) { c.ReplayExtra++ })
		default:
			f.count(func(c *Stats) { c.Duplicate++ })
		}
	case follow.Ask:
		q := e.Ask
		f.asked = &q
	case follow.Cancel:
		f.asked = nil
	case follow.Commit:
		f.commit(e.Ref.(*snapshot), e.Sign)
	}
}

// whyLost says why batches are that do not come.
func (f *Feed) whyLost(n uint64) Reason {
	why := ReplayFailed
	switch {
	case f.cfg.Replay == "":
		why = NoReplay
	case f.replaying:
		why = Retention
	}
	f.count(func(c *Stats) { c.Lost[why] += n })
	return why
}

// begunAnew forgets what the decoder knows of the process before. The next connection,
// or the next message, is to wait where the one before was soon before as well: the
// handler holds nothing then that could be out of date.
func (f *Feed) begunAnew(sign follow.Sign) {
	f.forget()
	f.count(func(c *Stats) { c.Restarts[sign]++ })
	now := time.Now()
	first := now.Sub(f.anew.Next()) > f.cfg.RetryMax
	if f.rest = f.anew.Later(now, now, f.cfg.RetryMin, f.cfg.RetryMax, f.seed); first {
		f.rest = 0
	}
	if f.over = sign != follow.FellBack && sign != follow.Named; !f.over { // live messages told
		sleep(f.ctx, f.rest)
	}
}

// forget makes the decoder know nothing.
func (f *Feed) forget() {
	for i, n := range f.dec.Stats() {
		f.leftPast[i] += n
	}
	f.dec, _ = engine.NewDecoder(f.cfg.Decoder) // New has made one
}

// countLeft publishes what the decoder left out.
func (f *Feed) countLeft() {
	f.count(func(c *Stats) {
		for i, n := range f.dec.Stats() {
			c.Left[i] = f.leftPast[i] + n
		}
		c.Salted = c.Salted || f.dec.Salted()
	})
}

// A position, version 1: "KVF", the version, flags (1: a batch was applied; 2:
// its fingerprint is known; 4: its process is), its number, fingerprint and, with that
// flag, process (u64 each, little-endian), and the decoder's state.
const (
	positionMagic   = "KVF"
	positionVersion = 1
	positionHeader  = 4 + 1 + 8 + 8
)

// ErrPosition is wrapped by New's error for a Position that it cannot use.
var ErrPosition = errors.New("the feed's position is unusable")

// Position appends to dst where the stream is, for Config.Position: after the
// batch or gap that the handler was told last. Keep it together with the state
// that was made of the batches. Some 25 bytes for each block of a salted or
// LoRA chain.
func (f *Feed) Position(dst []byte) []byte {
	at, have := f.rank.Position()
	flags, number := byte(0), uint64(0)
	if have {
		flags, number = 1, at.LastID-1
	}
	if at.Print != 0 {
		flags |= 2
	}
	if at.Process != 0 {
		flags |= 4
	}
	dst = append(append(dst, positionMagic...), positionVersion, flags)
	dst = binary.LittleEndian.AppendUint64(dst, number)
	dst = binary.LittleEndian.AppendUint64(dst, at.Print)
	if at.Process != 0 {
		dst = binary.LittleEndian.AppendUint64(dst, at.Process)
	}
	return f.dec.AppendState(dst)
}

func (f *Feed) setPosition(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if len(b) < positionHeader || string(b[:3]) != positionMagic || b[3] != positionVersion || b[4] > 7 {
		return fmt.Errorf("%w: %d bytes that are no position of version %d", ErrPosition, len(b), positionVersion)
	}
	at, state := follow.Position{}, b[positionHeader:]
	if b[4]&4 != 0 {
		if len(state) < 8 {
			return fmt.Errorf("%w: it ends within the process", ErrPosition)
		}
		at.Process, state = binary.LittleEndian.Uint64(state), state[8:]
	}
	if err := f.dec.RestoreState(state); err != nil {
		return fmt.Errorf("%w: %w", ErrPosition, err)
	}
	at.Incarnation, at.LastID, at.Incomplete = 1, binary.LittleEndian.Uint64(b[5:])+1, f.cfg.Incomplete
	if b[4]&2 != 0 {
		at.Print = binary.LittleEndian.Uint64(b[13:])
	}
	if b[4]&1 != 0 {
		f.Step(func(k *follow.Rank, s *follow.Step) { k.Resume(s, &at) })
	}
	return nil
}
