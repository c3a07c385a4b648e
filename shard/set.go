package shard

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v3"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// Errors that callers may want to tell apart.
var (
	// ErrClosed is returned by calls on a Set or Space after Set.Close.
	ErrClosed = errors.New("the index is closed")
	// ErrTooManySpaces is returned by Open beyond Config.MaxSpaces.
	ErrTooManySpaces = errors.New("too many index spaces: raise the limit, or check what publishers name as model, block size and group")
	// ErrOtherSpace is returned for a batch of another space.
	ErrOtherSpace = errors.New("the batch belongs to another space")
)

// What is made ahead for each space has bounds.
const (
	MaxShards = 1024
	MaxQueue  = 1 << 16
)

// Config holds the settings of a Set. The zero value is ready.
type Config struct {
	Shards    int // owner goroutines per space; 0 means DefaultShards(), and more than MaxShards as many
	Queue     int // batches a space accepts and has not yet applied before Apply blocks; 0 means 64, and more than MaxQueue as many
	MaxSpaces int // 0 means 1024
	MaxRanks  int // (worker, dp_rank) pairs of a space; blocks of others are refused; 0 means 2^20
	// MemoryBudget is how many bytes the indexes of all spaces may use
	// together; see core.Options. 0 or less means no limit.
	MemoryBudget int64
	// Key is what the indexes hash with; zero means a random one. See core.Key.
	Key core.Key
	// EngineScheme names the function of a worker's engine hashes, if it gives
	// equal content equal hashes on all workers that name the same; "" if not,
	// or if that is unknown. What an incomplete stream lacks is inferred from
	// workers of the same scheme, and what a hash-only event means is learned
	// from them; nil: nothing is. It is called by owners and within Apply, and
	// must be safe for concurrent use.
	EngineScheme func(key event.Space, worker uint64) string
	// NewIndex makes a shard's index; nil means the production index, which
	// keeps to the budget.
	NewIndex func() core.Index
	// Inline gives each space one shard and no goroutine: whoever writes does the owner's work,
	// and whoever looks up does so between writes. For callers that are one goroutine, as handing
	// over takes longer than to apply what an engine says in a step.
	Inline bool

	clears   clears // for tests
	dumpStep int    // for tests: how many blocks owners copy at a time, which a batch may find itself behind
}

// DefaultShards returns how many shards a space has where nobody says: 2, or 1
// on one processor. Two share the work of ranks whose chains begin with many
// blocks, and cost those whose chains begin with the same few nothing; each more
// looks at every hash of the former, which takes about half as long as its block
// (BENCHMARKS.md).
func DefaultShards() int { return min(2, runtime.GOMAXPROCS(0)) }

// withDefaults returns c with every zero replaced.
func (c Config) withDefaults() Config {
	switch {
	case c.Inline:
		c.Shards = 1
	case c.Shards <= 0:
		c.Shards = DefaultShards()
	}
	if c.Queue <= 0 {
		c.Queue = 64
	}
	c.Shards, c.Queue, c.MemoryBudget = min(c.Shards, MaxShards), min(c.Queue, MaxQueue), max(c.MemoryBudget, 0)
	if c.MaxSpaces <= 0 {
		c.MaxSpaces = 1024
	}
	c.clears, c.dumpStep = c.clears.withDefaults(), cmp.Or(c.dumpStep, 1<<14)
	if c.MaxRanks <= 0 {
		c.MaxRanks = 1 << 20
	}
	if c.Key == (core.Key{}) {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails
		c.Key = core.Key{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])}
	}
	return c
}

// Set holds the index of every space. Its methods are safe for concurrent use.
type Set struct {
	cfg    Config
	ledger *ledger

	spaces *xsync.MapOf[event.Space, *Space]
	sorted atomic.Pointer[[]event.Space] // the keys of spaces, stored after them

	mu struct { // guards the making of spaces
		sync.Mutex
		closed bool
	}
}

// New returns an empty Set.
func New(cfg Config) *Set {
	cfg = cfg.withDefaults()
	s := &Set{cfg: cfg, ledger: &ledger{budget: cfg.MemoryBudget}, spaces: xsync.NewMapOf[event.Space, *Space]()}
	s.sorted.Store(new([]event.Space))
	return s
}

// Open returns the space, made if absent.
func (s *Set) Open(key event.Space) (*Space, error) {
	if sp := s.Lookup(key); sp != nil {
		return sp, nil
	}
	if err := blockhash.CheckBlockSize(int(key.BlockSize)); err != nil {
		return nil, fmt.Errorf("opening the index space of model %q: %w", key.Model, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.Lookup(key)
	switch old := s.Spaces(); {
	case sp != nil:
		return sp, nil
	case s.mu.closed:
		return nil, ErrClosed
	case len(old) >= s.cfg.MaxSpaces:
		return nil, fmt.Errorf("opening the index space of model %q: %w", key.Model, ErrTooManySpaces)
	default:
		sp = newSpace(key, s.cfg, s.ledger)
		s.spaces.Store(key, sp)
		at, _ := slices.BinarySearchFunc(old, key, compareSpaces)
		sorted := slices.Insert(slices.Clone(old), at, key)
		s.sorted.Store(&sorted)
		return sp, nil
	}
}

// Lookup returns the space, or nil if it is not open. It takes no lock.
func (s *Set) Lookup(key event.Space) *Space {
	sp, _ := s.spaces.Load(key)
	return sp
}

// Spaces returns the open spaces, sorted by model, block size and group. Every
// one of them can be looked up. It takes no lock and allocates nothing: the
// caller must not change the slice.
func (s *Set) Spaces() []event.Space { return *s.sorted.Load() }

// compareSpaces gives the order of Spaces.
func compareSpaces(a, b event.Space) int {
	return cmp.Or(strings.Compare(a.Model, b.Model), cmp.Compare(a.BlockSize, b.BlockSize), strings.Compare(a.Group, b.Group))
}

// Close refuses further writes, waits until all accepted batches are applied
// and stops the owners. Lookups go on working.
func (s *Set) Close() {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.Unlock()
	for _, sp := range s.spaces.Range {
		sp.close()
	}
	for _, sp := range s.spaces.Range {
		sp.owners.Wait()
	}
}
