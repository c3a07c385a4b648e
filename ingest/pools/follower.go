package pools

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
	"github.com/kvatlas/kvatlas/internal/pace"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// Index is where a pool's blocks go: a shard.Space.
type Index interface {
	PoolReadable(name string, readable bool)
	PoolHidden(name string) bool
	PoolStore(ctx context.Context, name string, hashes []uint64) (unplaced []uint64, err error)
	PoolRemove(ctx context.Context, name string, hashes []uint64) error
	PoolKeep(ctx context.Context, name string, keep func(hash uint64) bool) error
}

// Config holds the settings of followers. Zero fields take the defaults.
type Config struct {
	// MaxBlocks is how many blocks of a pool are followed; default 8,388,608, of some 36 bytes at most.
	MaxBlocks int
	// MaxWaiting is how many bytes of messages wait while a list is read; default 64 MiB.
	MaxWaiting int
	// Relist is the time between lists while the stream is whole; default 10 min.
	Relist time.Duration
	// Place is the time between tries to find places of objects that no worker knew; default 1 s.
	Place time.Duration
	// RetryMin and RetryMax bound the pause after a connection or list that failed; defaults 0.1 and 5 s.
	RetryMin, RetryMax time.Duration
	// ListLimit is how long a list may take; default 2 min.
	ListLimit time.Duration
	HTTP      *http.Client // default: one that follows no redirects
	Log       *slog.Logger // default: slog.Default
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		p   *time.Duration
		def time.Duration
	}{{&c.Relist, 10 * time.Minute}, {&c.Place, time.Second}, {&c.RetryMin, time.Second / 10}, {&c.RetryMax, 5 * time.Second}, {&c.ListLimit, 2 * time.Minute}} {
		if *d.p <= 0 {
			*d.p = d.def
		}
	}
	if c.MaxBlocks <= 0 {
		c.MaxBlocks = 1 << 23
	}
	if c.MaxWaiting <= 0 {
		c.MaxWaiting = 64 << 20
	}
	if c.HTTP == nil {
		c.HTTP = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
}

const (
	// batch is how many objects are put into the index, taken out, or looked for again, at a time.
	batch = 4096
	// maxMessage is how long a message may be; a longer one is as one that is missing.
	maxMessage = 16 << 20
	// messageRoom is what a message takes besides its bytes.
	messageRoom = 64
)

// Status is how a follower fares.
type Status struct {
	Readable bool   // lookups see the pool
	Cause    string // why not
	Blocks   int    // that are whole
	Unplaced int    // of them whose place no worker has told
	Lists    uint64 // that were read
	Gaps     uint64 // messages, or runs of them, that were missing
	Left     Left
}

// Follower follows one pool's own stream.
type Follower struct {
	cfg    Config
	name   string
	source *event.PoolSource
	index  Index
	log    *obs.Limited

	status atomic.Pointer[Status]

	// Run's goroutine's:
	objects  *objects // nil: nothing was listed
	waiting  []message
	waits    int  // bytes of waiting
	over     bool // the list that is under way is of no use
	unplaced map[uint64]struct{}
	stat     Status
	last     uint64 // number of the last message
	heard    bool   // there was one, of this connection
	silent   bool   // there was none since the last list began
	listing  bool
	again    bool // another list is needed
	listPace pace.Pace
	lists    chan listing
	bodies   sync.WaitGroup
}

type message struct {
	number  uint64
	payload []byte
}

type listing struct {
	objects *objects
	err     error
}

// New returns a follower of the pool's stream.
func New(cfg Config, name string, source *event.PoolSource, index Index) *Follower {
	cfg.setDefaults()
	f := &Follower{cfg: cfg, name: name, source: source, index: index, log: obs.NewLimited(cfg.Log.With("pool", name), time.Second, nil), unplaced: make(map[uint64]struct{})}
	f.status.Store(&Status{Cause: "it was not read yet"})
	return f
}

// Status returns how it fares. Anyone may call it.
func (f *Follower) Status() Status { return *f.status.Load() }

// Run follows the stream until ctx ends. Call it once.
func (f *Follower) Run(ctx context.Context) {
	var again pace.Pace
	for ctx.Err() == nil {
		began := time.Now()
		err := f.session(ctx)
		if ctx.Err() != nil {
			break
		}
		f.hide("stream", err.Error())
		now := time.Now()
		if now.Sub(began) > f.cfg.RetryMax {
			again.Progress()
		}
		sleep(ctx, again.Later(now, now, f.cfg.RetryMin, f.cfg.RetryMax, 0))
	}
	f.conceal("it is not followed any more")
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// hide has lookups see nothing of the pool, and says why in the log, once a second of each kind.
func (f *Follower) hide(kind, cause string) {
	f.conceal(cause)
	f.log.Warn(kind, "lookups find nothing in a pool", slog.String("cause", cause))
}

func (f *Follower) conceal(cause string) {
	f.index.PoolReadable(f.name, false)
	f.stat.Readable, f.stat.Cause = false, cause
	f.show()
}

// reveal has lookups see the pool, if its objects are of as many parts as is said.
func (f *Follower) reveal() {
	if n := len(f.objects.parts); n > int(f.source.Parts) {
		f.hide("parts", fmt.Sprintf("a block is stored as %d objects at least, the registration says parts: %d", n, f.source.Parts))
		return
	}
	f.stat.Readable, f.stat.Cause = true, ""
	f.index.PoolReadable(f.name, true)
	f.show()
}

func (f *Follower) show() {
	st := f.stat
	st.Unplaced = len(f.unplaced)
	if f.objects != nil {
		st.Blocks, st.Left = f.objects.whole, f.objects.left
	}
	f.status.Store(&st)
}

// session follows the stream until the connection breaks or ctx ends.
func (f *Follower) session(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer f.bodies.Wait()
	defer cancel()
	conn, err := zmtp.Dial(ctx, f.source.Events, zmtp.Sub, zmtp.Options{MaxMessage: maxMessage})
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", f.source.Events, err)
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() }) // however the session ends: read waits for it
	if err := conn.Subscribe(""); err != nil {
		return fmt.Errorf("subscribing at %s: %w", f.source.Events, err)
	}
	came, broken := make(chan message, 4), make(chan error, 1)
	f.bodies.Go(func() { broken <- read(ctx, conn, came) })
	f.heard, f.again, f.lists = false, true, make(chan listing, 1)
	f.listing, f.waiting = false, nil
	f.listPace.Progress()
	place := time.NewTicker(f.cfg.Place)
	defer place.Stop()
	relist := time.NewTicker(f.cfg.Relist)
	defer relist.Stop()
	for {
		if f.again && !f.listing && f.listPace.Ready(time.Now()) {
			f.list(ctx)
		}
		select {
		case m := <-came:
			err = f.take(ctx, m)
		case l := <-f.lists:
			err = f.listed(ctx, l)
		case <-place.C:
			err = f.place(ctx)
		case <-relist.C:
			f.again = true
		case err = <-broken:
		}
		if err != nil {
			return err
		}
	}
}

// read reads messages until the connection breaks.
func read(ctx context.Context, conn *zmtp.Conn, came chan<- message) error {
	var m zmtp.Message
	for {
		err := conn.ReadMessage(&m)
		if err != nil && !errors.Is(err, zmtp.ErrTooLarge) {
			return fmt.Errorf("the stream broke: %w", err)
		}
		if m.Len() != 3 || len(m.Frame(1)) != 8 {
			return fmt.Errorf("a message of %d frames is none of a store's stream", m.Len())
		}
		got := message{number: binary.BigEndian.Uint64(m.Frame(1))}
		if err == nil {
			got.payload = append([]byte{}, m.Frame(2)...)
		}
		select {
		case came <- got:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take takes the next message.
func (f *Follower) take(ctx context.Context, m message) error {
	switch {
	case !f.heard: // what came before it, after a list, never reached us
		f.again, f.over = true, f.listing
	case m.number != f.last+1:
		f.stat.Gaps++
		f.again, f.over = true, f.listing // which may be of before
		f.hide("gap", "messages of the stream are missing")
	}
	f.heard, f.silent, f.last = true, false, m.number
	if f.listing && !f.over {
		f.waiting = append(f.waiting, m)
		if f.waits += len(m.payload) + messageRoom; f.waits > f.cfg.MaxWaiting {
			f.over, f.waiting = true, nil
			if !f.stat.Readable {
				f.hide("more", fmt.Sprintf("more than %d bytes came while the keys were listed", f.cfg.MaxWaiting))
			}
		}
	}
	if f.objects == nil {
		return nil
	}
	stored, removed, err := f.changes(m.payload)
	if err != nil {
		f.stat.Gaps++
		f.again, f.over = true, f.listing
		f.hide("message", err.Error())
		return nil
	}
	if f.stat.Readable && len(f.objects.parts) > int(f.source.Parts) {
		f.reveal() // says why not
	}
	for some := range slices.Chunk(removed, batch) {
		if err := f.index.PoolRemove(ctx, f.name, some); err != nil {
			return err
		}
	}
	return f.store(ctx, stored)
}

// changes applies a payload to the objects and returns which blocks are whole by it that were not,
// and which are not any more.
func (f *Follower) changes(payload []byte) (stored, removed []uint64, err error) {
	changed := make(map[uint64]int)
	left, err := engine.Objects(payload, func(ev engine.ObjectEvent) {
		if len(ev.Tenant) > 0 && string(ev.Tenant) != "default" { // whose keys no list has
			f.objects.left.Foreign++
			return
		}
		if ev.Kind == event.Cleared {
			for hash := range f.objects.blocks {
				changed[hash] = -1
			}
			fresh := newObjects(f.source, f.cfg.MaxBlocks)
			fresh.parts, fresh.left = f.objects.parts, f.objects.left
			f.objects = fresh
			return
		}
		if hash, change := f.objects.apply(ev.Kind, ev.Key); change != 0 {
			changed[hash] = change
		}
	})
	f.objects.left.Events += uint64(left)
	for hash, change := range changed {
		if change > 0 {
			stored = append(stored, hash)
		} else {
			removed = append(removed, hash)
			delete(f.unplaced, hash)
		}
	}
	return stored, removed, err
}

// store puts blocks into the index.
func (f *Follower) store(ctx context.Context, hashes []uint64) error {
	for len(hashes) > 0 {
		n := min(len(hashes), batch)
		unplaced, err := f.index.PoolStore(ctx, f.name, hashes[:n])
		if err != nil {
			return err
		}
		for _, e := range hashes[:n] {
			delete(f.unplaced, e)
		}
		for _, e := range unplaced {
			f.unplaced[e] = struct{}{}
		}
		hashes = hashes[n:]
	}
	f.show()
	return nil
}

// place tries some of those again whose place nobody knew.
func (f *Follower) place(ctx context.Context) error {
	if f.stat.Readable && f.index.PoolHidden(f.name) {
		// All who named its stream had left, and are back: what others said meanwhile may be in it.
		f.again = true
		f.conceal("who names it has changed")
	}
	some := make([]uint64, 0, min(len(f.unplaced), batch))
	for hash := range f.unplaced {
		if some = append(some, hash); len(some) == batch {
			break
		}
	}
	return f.store(ctx, some)
}
