package zmqfeed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
	"github.com/kvatlas/kvatlas/internal/pace"
)

// errRestarted ends a session whose queue holds what an ended process said.
var errRestarted = errors.New("the engine restarted")

// Feed follows one engine's stream. Its methods but Stats and Queued belong to
// the goroutine that calls Run, the Handler's calls included.
type Feed struct {
	cfg      Config
	h        Handler
	dec      *engine.Decoder
	leftPast engine.Stats // of decoders before
	reply    zmtp.Message // of replays, reused
	counters counters

	// Where the stream is:
	have    bool   // a batch was applied since the start or restart
	last    uint64 // the number of the last batch applied, or told as Gap
	print   uint64 // of that batch's payload, to know it again
	printed bool   // print is set

	samePublisher bool // the connection's publisher is the one that sent last
	answered      bool // a replay of this process has ever brought a batch

	connect pace.Pace // connections that broke
	anew    pace.Pace // restarts; rest is how long to wait after the last
	rest    time.Duration
	ask     pace.Pace // replays that did not help
	verify  pace.Pace // replays because of numbers that fell, which had not
	replays pace.Quota
	seed    uint64 // of the chance in waits
	// dial is zmtp.Dial, but in tests.
	dial func(ctx context.Context, endpoint string, t zmtp.Type, o zmtp.Options) (*zmtp.Conn, error)
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
	f := &Feed{cfg: cfg, h: h, dec: dec, seed: rand.Uint64(), dial: zmtp.Dial}
	if err := f.setPosition(cfg.Position); err != nil {
		return nil, err
	}
	return f, nil
}

// Run follows the stream, over broken connections and the engine's restarts,
// until ctx ends. Once it has returned nothing of the feed runs any more.
// Call it once.
func (f *Feed) Run(ctx context.Context) {
	f.h.State(State{Phase: Connecting})
	for ctx.Err() == nil {
		began := time.Now()
		err := f.session(ctx)
		if ctx.Err() != nil {
			return
		}
		f.h.State(State{Phase: Connecting, Err: err})
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

// next returns the number that the next batch should have.
func (f *Feed) next() uint64 {
	if !f.have {
		return 0
	}
	return f.last + 1
}

// apply gives a batch to the handler. Of an oversize one there is no payload.
func (f *Feed) apply(seq uint64, payload []byte, oversize, replayed bool) {
	f.have, f.last, f.samePublisher = true, seq, true
	f.printed = !oversize
	if oversize {
		f.gap(seq, Oversize)
		return
	}
	f.print = xxh3.Hash(payload)
	b, err := f.dec.Decode(payload)
	f.countLeft()
	if err != nil {
		f.gap(seq, Undecodable)
		return
	}
	if replayed {
		f.counters.replayed.Add(1)
	} else {
		f.counters.live.Add(1)
	}
	f.h.Batch(seq, b)
}

// skipTo tells the batches before seq as a Gap, if there are any.
func (f *Feed) skipTo(seq uint64, why Reason) {
	from := f.next()
	if seq <= from {
		return
	}
	f.have, f.last, f.printed = true, seq-1, false
	f.counters.lost[why].Add(seq - from)
	f.h.Gap(Gap{From: from, To: seq - 1, Why: why, Same: f.samePublisher})
}

// gap tells a batch that is there, but unusable.
func (f *Feed) gap(seq uint64, why Reason) {
	f.counters.lost[why].Add(1)
	f.h.Gap(Gap{From: seq, To: seq, Why: why, Same: true})
}

// restart forgets everything about the process before. The next connection, or
// the next message, is to wait for f.rest: where the one before was soon before as
// well. The handler holds nothing then that could be out of date.
func (f *Feed) restart(why Cause) error {
	f.have, f.last, f.printed, f.answered = false, 0, false, false
	f.samePublisher = true // there is nothing left that another process said
	for i, n := range f.dec.Stats() {
		f.leftPast[i] += n
	}
	dec, err := engine.NewDecoder(f.cfg.Decoder)
	if err != nil {
		return err
	}
	f.dec = dec
	f.counters.restarts[why].Add(1)
	f.h.Restart(why)
	now := time.Now()
	first := now.Sub(f.anew.Next()) > f.cfg.RetryMax
	if f.rest = f.anew.Later(now, now, f.cfg.RetryMin, f.cfg.RetryMax, f.seed); first {
		f.rest = 0
	}
	return nil
}

// countLeft publishes what the decoder left out.
func (f *Feed) countLeft() {
	for i, n := range f.dec.Stats() {
		f.counters.left[i].Store(f.leftPast[i] + n)
	}
}

// A position, version 1: "KVF", the version, flags (1: a batch was applied; 2:
// its fingerprint is known), its number and fingerprint (u64 each,
// little-endian), and the decoder's state.
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
	flags := byte(0)
	if f.have {
		flags |= 1
	}
	if f.printed {
		flags |= 2
	}
	dst = append(append(dst, positionMagic...), positionVersion, flags)
	dst = binary.LittleEndian.AppendUint64(dst, f.last)
	dst = binary.LittleEndian.AppendUint64(dst, f.print)
	return f.dec.AppendState(dst)
}

func (f *Feed) setPosition(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if len(b) < positionHeader || string(b[:3]) != positionMagic || b[3] != positionVersion || b[4] > 3 {
		return fmt.Errorf("%w: %d bytes that are no position of version %d", ErrPosition, len(b), positionVersion)
	}
	if err := f.dec.RestoreState(b[positionHeader:]); err != nil {
		return fmt.Errorf("%w: %w", ErrPosition, err)
	}
	f.have, f.printed = b[4]&1 != 0, b[4]&2 != 0
	f.last, f.print = binary.LittleEndian.Uint64(b[5:]), binary.LittleEndian.Uint64(b[13:])
	return nil
}
