package zmqfeed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
)

const (
	spareMessages = 32      // kept to be read into again
	spareBytes    = 1 << 20 // that a spare one may hold
	maxBlind      = 2       // probes in a row that may find what a silent connection did not bring
)

// errBroken ends a session whose connection is gone while what came of it waits,
// when a replay is asked for: who answers may be another process than the one that
// said what waits. The next session knows, and has it replayed if it is the same.
var errBroken = errors.New("the subscription broke")

var errSilent = errors.New("the subscription brings nothing, though the engine publishes")

var errSlept = errors.New("this machine slept, or its clock was set: what the engine has published meanwhile is not known")

const (
	lookForSleep = time.Second
	shortestNap  = 5 * time.Second // that a connection is not trusted after
)

// napped returns how much longer the clock of the day says that it was from a to b than the process's own, which stands
// still while the machine sleeps, or its VM is halted.
func napped(a, b time.Time) time.Duration { return b.Round(0).Sub(a.Round(0)) - b.Sub(a) }

// session is one subscription, from its connection to its end. Two goroutines: the
// reader takes from the socket, so that the engine's high-water mark is not what drops
// messages while a batch is applied or a replay runs; the feed's own does all else. They
// share what says so below, and the feed's counters.
type session struct {
	f      *Feed
	conn   *zmtp.Conn
	items  chan *item    // from the reader, which closes it
	spare  chan *item    // back to the reader
	room   chan struct{} // tells the reader that bytes were taken
	done   chan struct{} // tells the reader to end
	err    error         // why the reader ended, once items is closed
	broken atomic.Bool   // it has ended
	awake  time.Time     // when it was last known that the machine had not slept
	blind  int           // probes in a row that found what should have come live
}

// item is a message with a batch.
type item struct {
	follow.Batch
	f        *Feed
	live     *session // whose queue it came through; nil: it was replayed
	m        zmtp.Message
	payload  []byte
	oversize bool
}

// set makes the message the batch with the number.
func (it *item) set(f *Feed, number uint64, payload []byte) {
	it.f, it.payload, it.Batch = f, payload, follow.Batch{Number: number, Ref: it}
	if !it.oversize {
		it.Print = max(1, xxh3.Hash(payload)) // 0 is: not known
	}
}

// Read implements Content.
func (it *item) Read() (*event.Batch, Reason, error) {
	f := it.f
	if it.oversize {
		f.count(func(c *Stats) { c.Lost[Oversize]++ })
		return nil, Oversize, zmtp.ErrTooLarge
	}
	b, err := f.dec.Decode(it.payload)
	f.countLeft()
	switch {
	case err != nil:
		f.count(func(c *Stats) { c.Lost[Undecodable]++ })
	case it.live != nil:
		f.count(func(c *Stats) { c.Live++ })
	default:
		f.count(func(c *Stats) { c.Replayed++ })
	}
	return b, Undecodable, err
}

// Done implements Content.
func (it *item) Done() {
	if it.live != nil {
		it.live.release(it)
	}
}

// session subscribes and follows the stream until the connection breaks, ctx
// ends or the engine is found restarted.
func (f *Feed) session(ctx context.Context) error {
	awake := f.now()
	conn, err := f.dial(ctx, f.cfg.Endpoint, zmtp.Sub, zmtp.Options{MaxMessage: f.cfg.MaxMessage, Handshake: f.cfg.Dial})
	if err != nil {
		f.count(func(c *Stats) { c.Refused++ })
		return err
	}
	f.count(func(c *Stats) { c.Connects++ })
	s := &session{
		f: f, conn: conn, awake: awake,
		items: make(chan *item, f.cfg.QueueMessages),
		spare: make(chan *item, spareMessages),
		room:  make(chan struct{}, 1),
		done:  make(chan struct{}),
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // the reader tells
	defer stop()
	var reader sync.WaitGroup
	reader.Go(s.read)
	defer func() {
		close(s.done)
		_ = conn.Close() // nothing is left to send
		reader.Wait()
		for it := range s.items {
			s.release(it)
		}
	}()
	f.over = false
	if err := conn.Subscribe(f.cfg.Topic); err != nil {
		return fmt.Errorf("subscribe at %s: %w", f.cfg.Endpoint, err)
	}
	err = s.follow(ctx)
	if s.broken.Load() && ctx.Err() == nil { // whatever was under way when it was noticed
		f.count(func(c *Stats) { c.Disconnects++ })
	}
	return err
}

// read is the reader: it puts live messages into the queue.
func (s *session) read() {
	defer close(s.items)
	c := &s.f.counters
	for {
		var it *item
		select {
		case it = <-s.spare:
		default:
			it = new(item)
		}
		err := s.conn.ReadMessage(&it.m)
		it.live, it.oversize = s, errors.Is(err, zmtp.ErrTooLarge)
		if err != nil && !it.oversize {
			s.err = err
			s.broken.Store(true)
			return
		}
		// A message larger than the whole queue gets in when it is empty. The feed takes
		// its bytes off when it is done with a message, so at most one is beyond.
		n := int64(it.m.Size())
		for full := false; ; {
			queued := c.queuedBytes.Load()
			if queued == 0 || queued+n <= int64(s.f.cfg.QueueBytes) {
				break
			}
			if !full {
				full = true
				s.f.count(func(c *Stats) { c.QueueFull++ })
			}
			select {
			case <-s.room:
			case <-s.done:
				return
			}
		}
		c.queuedBytes.Add(n)
		c.queued.Add(1)
		select {
		case s.items <- it:
			continue
		default:
			s.f.count(func(c *Stats) { c.QueueFull++ })
		}
		select {
		case s.items <- it:
		case <-s.done:
			s.release(it)
			return
		}
	}
}

// release takes a message out of the queue's account. One that grew large is left to the
// garbage collector: spare ones are kept for as long as the session lasts.
func (s *session) release(it *item) {
	s.f.counters.queuedBytes.Add(-int64(it.m.Size()))
	s.f.counters.queued.Add(-1)
	select {
	case s.room <- struct{}{}:
	default:
	}
	if it.m.Cap() <= spareBytes {
		select {
		case s.spare <- it:
		default:
		}
	}
}

// follow catches up and then gives live messages to the rank as they come. A connection
// that brings nothing may be one that the network forgot, or an engine at rest: after a
// silence the engine is asked, at most twice as long after each time that it had nothing. After a sleep
// of the machine nobody knows which, and a new connection tells at once.
func (s *session) follow(ctx context.Context) error {
	f := s.f
	f.Step((*follow.Rank).Connected)
	if err := s.answer(ctx); err != nil {
		return err
	}
	var silence <-chan time.Time
	wait, heard := f.cfg.ProbeMin, false
	var timer *time.Timer
	if f.cfg.Replay != "" && wait > 0 {
		timer = time.NewTimer(wait)
		defer timer.Stop()
		silence = timer.C
	}
	look := time.NewTicker(lookForSleep)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			now := f.now()
			if napped(s.awake, now) >= shortestNap {
				f.count(func(c *Stats) { c.Slept++ })
				return fmt.Errorf("subscription at %s: %w", f.cfg.Endpoint, errSlept)
			}
			s.awake = now
		case it, ok := <-s.items:
			if !ok {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return fmt.Errorf("subscription at %s: %w", f.cfg.Endpoint, s.err)
			}
			heard, s.blind = true, 0
			if s.live(it) {
				if err := s.answer(ctx); err != nil {
					return err
				}
			}
		case <-silence:
			if heard {
				heard, wait = false, f.cfg.ProbeMin
			} else {
				if err := s.probe(ctx); err != nil {
					return err
				}
				wait = min(2*wait, f.cfg.ProbeMax)
			}
			timer.Reset(wait)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// probe asks whether the engine has published what did not come. Once, it may just have
// been on its way; maxBlind times in a row the subscription brings nothing, and a new
// one is made.
func (s *session) probe(ctx context.Context) error {
	f := s.f
	before := f.Next()
	if f.Step((*follow.Rank).Silent); f.asked == nil {
		return nil // it was asked in vain, not long ago
	}
	f.count(func(c *Stats) { c.Probes++ })
	if err := s.answer(ctx); err != nil {
		return err
	}
	if f.Next() == before {
		return nil
	}
	if s.blind++; s.blind < maxBlind {
		return nil
	}
	f.count(func(c *Stats) { c.Silent++ })
	return fmt.Errorf("subscription at %s: %w", f.cfg.Endpoint, errSilent)
}

// live gives a live message to the rank. It reports false for one that is not the
// stream's.
func (s *session) live(it *item) bool {
	f, m := s.f, &it.m
	f.count(func(c *Stats) { c.Messages++ })
	var topic []byte
	var number, who uint64
	ok := m.Len() == 3
	if ok {
		topic, number, who, ok = named(m.Frame(0), m.Frame(1))
	}
	if !ok {
		f.count(func(c *Stats) { c.Malformed++ })
		it.Done()
		return false
	}
	payload := m.Frame(2)
	if n := len(f.cfg.Topic); len(topic) < n || string(topic[:n]) != f.cfg.Topic || f.cfg.ExactTopic && len(topic) > n {
		f.count(func(c *Stats) { c.OtherTopic++ })
		it.Done()
		return false
	}
	if number == endOfReplay {
		f.count(func(c *Stats) { c.Malformed++ })
		it.Done()
		return false
	}
	f.count(func(c *Stats) { c.Bytes += uint64(len(payload)) })
	it.set(f, number, payload)
	it.Process = who
	f.Step(func(k *follow.Rank, st *follow.Step) { k.Live(st, &it.Batch) })
	return true
}
