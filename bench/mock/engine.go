package mock

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/event"
)

// Config holds the settings of an Engine. Zero fields take the defaults.
type Config struct {
	BlockSize int // tokens a block; default 16
	Blocks    int // of the cache; default 16,384
	// HostBlocks and DiskBlocks are of tiers below the cache, which keep copies
	// of what it evicts; 0, the default, is none.
	HostBlocks, DiskBlocks int
	Groups                 []Group // of a hybrid model
	Shared                 *Shared // below these, for several engines; nil is none
	MaxRunning             int     // requests in a step; default 256
	MaxBatched             int     // tokens computed in a step; default 8,192
	MaxWaiting             int     // requests that wait to run; default 65,536
	// HashSeed seeds the engine hashes. Engines of the same seed name the same
	// content by the same hash.
	HashSeed uint64
	DPRank   uint32 // put into the events
}

// The defaults of Config.
const (
	DefaultBlockSize  = 16
	DefaultBlocks     = 16384
	DefaultMaxRunning = 256
	DefaultMaxBatched = 8192
	DefaultMaxWaiting = 65536
)

// Errors of Admit.
var (
	ErrTooLarge = errors.New("the request is larger than the cache")
	ErrBusy     = errors.New("too many requests wait")
	ErrRequest  = errors.New("the request does not fit the engine")
	ErrRunning  = errors.New("requests are running")
)

// Request is one prompt and its answer as an engine sees them.
type Request struct {
	ID     uint64 // the caller's
	Input  int    // tokens of the prompt, at least 1
	Output int    // tokens to generate; 0 only computes the prompt
	// Local has the local hash of each complete block of the prompt, and then those of the blocks that
	// generation completes, in order. A block without a hash is never reused.
	Local []uint64
	// Names, if not nil, is what Config.Names says of Local. The engine keeps both then, so they must not
	// change until the request has ended.
	Names []uint64
	// Received says that another engine has computed the prompt and its KV
	// entries come from there: only the last token is computed here.
	Received bool
	// Fetched is how many leading blocks of the prompt another engine has given: what of them this
	// one does not have need not be computed. An engine of a hybrid model does not use them.
	Fetched int
}

// Report is what one step did. Its slices live until the next one.
type Report struct {
	Prefill int // tokens computed of prompts, and again of preempted requests
	Decode  int // requests that went on by one token
	Context int // tokens that those requests attend to
	Reused  int // tokens found in the cache by requests that began to run
	Lost    int // tokens whose computation a preemption threw away
	// Loaded counts the blocks of the reused tokens that came from each lower
	// tier.
	Loaded [event.NumTiers]int

	Began     []Begun  // requests that began to run, in order
	First     []uint64 // IDs of requests whose prompt is complete: the first token
	Finished  []uint64 // IDs
	Preempted []uint64 // IDs of requests that gave their blocks up and wait again
}

// Begun says how much of a request was found when it began to run.
type Begun struct {
	ID     uint64
	Reused int  // tokens
	Again  bool // after a preemption
}

// Engine is one rank of a worker. It is not safe for concurrent use.
type Engine struct {
	cfg     Config
	sink    func(*event.Event)
	cache   *cache
	lower   []*pool // the tiers below, nearest first
	groups  []*group
	align   int         // blocks between prefixes that all groups may allow
	running []*sequence // in the order in which they began
	waiting queue
	spare   []*sequence // finished ones, for their memory
	// blocked is the first waiting request if too few blocks were free for it
	// when cache.freed was blockedAt; looking again is only then worth while.
	blocked   *sequence
	blockedAt uint64
	calm      calm
	report    Report
	ev        event.Event // reused
}

// sequence is a request in an engine.
// What each step looks at stands first, in one line of the cache.
type sequence struct {
	id            uint64
	input, output int
	computed      int // tokens whose KV entries are in the blocks
	generated     int
	blocks, named int   // cache blocks that it uses, and how many of them, from the first on, are named
	last          int32 // the run of the last of these; 0 without
	step          bool  // computed something in this step
	received      bool  // the prompt's KV entries come from elsewhere
	again         bool  // was preempted
	kept          bool  // local and name are the caller's

	local, name []uint64 // of each hashed block: its local and engine hash
	fetched     int      // leading blocks whose KV entries come from elsewhere
}

// New makes an engine that passes its events to sink.
func New(cfg Config, sink func(*event.Event)) (*Engine, error) {
	for _, f := range []struct {
		name string
		p    *int
		def  int
	}{
		{"BlockSize", &cfg.BlockSize, DefaultBlockSize},
		{"Blocks", &cfg.Blocks, DefaultBlocks},
		{"MaxRunning", &cfg.MaxRunning, DefaultMaxRunning},
		{"MaxBatched", &cfg.MaxBatched, DefaultMaxBatched},
		{"MaxWaiting", &cfg.MaxWaiting, DefaultMaxWaiting},
	} {
		if *f.p == 0 {
			*f.p = f.def
		}
		if *f.p < 1 || *f.p > 1<<30 {
			return nil, fmt.Errorf("mock engine: %s is %d, must be 1 … 2^30", f.name, *f.p)
		}
	}
	e := &Engine{cfg: cfg, sink: sink, cache: newCache(cfg.Blocks)}
	var err error
	if e.groups, e.align, err = newGroups(&cfg); err != nil {
		return nil, err
	}
	for _, below := range []struct {
		name string
		tier event.Tier
		size int
	}{{"HostBlocks", event.HostPinned, cfg.HostBlocks}, {"DiskBlocks", event.Disk, cfg.DiskBlocks}} {
		if below.size < 0 || below.size > 1<<30 {
			return nil, fmt.Errorf("mock engine: %s is %d, must be 0 … 2^30", below.name, below.size)
		}
		if below.size > 0 {
			e.lower = append(e.lower, newPool(below.tier, below.size))
		}
	}
	if cfg.Shared != nil {
		e.lower = append(e.lower, cfg.Shared.pool)
	}
	return e, nil
}

// Admit lets a request wait for its turn. It copies r, but for Local and Names. The error wraps
// ErrTooLarge, ErrBusy or ErrRequest; the engine is then as before.
func (e *Engine) Admit(r *Request) error {
	size := e.cfg.BlockSize
	most := r.Input + max(r.Output-1, 0)         // tokens whose KV entries are computed
	prompt, kept := r.Input/size, r.Names != nil // complete blocks
	switch {
	case r.Input < 1 || r.Output < 0 || len(r.Local) < prompt:
		return fmt.Errorf("%w: %d hashes of %d tokens for a prompt of %d and %d to generate",
			ErrRequest, len(r.Local), size, r.Input, r.Output)
	case len(r.Local) > most/size:
		return fmt.Errorf("%w: %d hashes, more than its complete blocks", ErrRequest, len(r.Local))
	case kept && len(r.Names) != len(r.Local):
		return fmt.Errorf("%w: %d names of %d hashes", ErrRequest, len(r.Names), len(r.Local))
	case (most-1)/size+1 > e.cfg.Blocks:
		return fmt.Errorf("%w: %d tokens, the cache has %d blocks of %d", ErrTooLarge, most, e.cfg.Blocks, size)
	case e.waiting.len() >= e.cfg.MaxWaiting:
		return fmt.Errorf("%w: %d", ErrBusy, e.waiting.len())
	}
	var s *sequence
	if n := len(e.spare); n > 0 {
		s, e.spare = e.spare[n-1], e.spare[:n-1]
	} else {
		s = new(sequence)
	}
	local, name := r.Local, r.Names
	if !kept {
		if s.kept {
			s.local, s.name = nil, nil
		}
		local = append(s.local[:0], r.Local...)
		name = e.cfg.Names(s.name[:0], local)
	}
	*s = sequence{
		id: r.ID, input: r.Input, output: r.Output, received: r.Received, fetched: min(max(r.Fetched, 0), prompt),
		kept: kept, local: local, name: name,
	}
	e.waiting.pushBack(s)
	return nil
}

// Names appends the engine hash of each block of a prompt by the local hashes, after those of the blocks before them.
func (c *Config) Names(dst, local []uint64) []uint64 {
	parent := c.HashSeed
	if n := len(dst); n > 0 {
		parent = dst[n-1]
	}
	for _, l := range local {
		parent = engineHash(parent, l, c.HashSeed)
		dst = append(dst, parent)
	}
	return dst
}

// engineHash names the block with the local hash after the block named parent.
func engineHash(parent, local, seed uint64) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], parent)
	binary.LittleEndian.PutUint64(b[8:], local)
	return xxh3.HashSeed(b[:], seed)
}

// Leading returns how many leading blocks of a prompt, by their local hashes, the engine has on
// some tier.
func (e *Engine) Leading(local []uint64) int {
	names := e.cfg.Names(nil, local)
	for i := e.cache.match(names); i < len(names); i++ {
		if e.below(names[i]) == nil {
			return i
		}
	}
	return len(names)
}

// Idle reports whether there is nothing to do.
func (e *Engine) Idle() bool { return len(e.running) == 0 && e.waiting.len() == 0 }

// Running returns how many requests take part in steps.
func (e *Engine) Running() int { return len(e.running) }

// Waiting returns how many requests wait to run.
func (e *Engine) Waiting() int { return e.waiting.len() }

// Used returns how many blocks of the cache requests use.
func (e *Engine) Used() int { return e.cfg.Blocks - e.cache.free }

// Held returns how many blocks of the cache can be reused.
func (e *Engine) Held() int { return e.cache.held }

// AppendHeld appends the engine hashes of the blocks of the cache that can be
// reused.
func (e *Engine) AppendHeld(dst []uint64) []uint64 {
	for i := range e.cache.runs {
		dst = append(dst, e.cache.runs[i].names...)
	}
	return dst
}

// Clear empties the cache and the tiers below, as a reset of the prefix cache
// does. The error is
// ErrRunning: a running request needs its blocks.
func (e *Engine) Clear() error {
	if len(e.running) > 0 {
		return ErrRunning
	}
	e.cache.clear()
	for _, p := range e.lower {
		if p.tier != event.External { // others' too
			p.clear()
		}
	}
	for _, g := range e.groups {
		g.pool.clear()
	}
	e.emit(event.Event{Kind: event.Cleared, Tier: event.Device, AllTiers: len(e.lower)+len(e.groups) > 0})
	return nil
}

func (e *Engine) emit(ev event.Event) {
	ev.DPRank = e.cfg.DPRank
	e.ev = ev
	e.sink(&e.ev)
}
