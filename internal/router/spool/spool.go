package spool

import (
	"cmp"
	"errors"
	"sync"
	"time"
)

// Errors of Body.Fill.
var (
	// ErrNoRoom: all bodies together hold as much as they may.
	ErrNoRoom = errors.New("there is no room for more bytes of requests")
	// ErrShare: those of this client do.
	ErrShare = errors.New("the client holds as many bytes of requests as one may")
	// ErrSlow: the body arrived slowly, and its room went to another.
	ErrSlow = errors.New("the body arrived too slowly while room was short")
	// ErrTooLarge: the body is larger than the reader's limit.
	ErrTooLarge = errors.New("the body is too large")
	// ErrLength: the body has another length than it said it has, and has come to its end.
	ErrLength = errors.New("the body is not as long as it says")
)

// Config holds the settings of a Spool.
type Config struct {
	Memory int64 // bytes of all bodies in memory
	Each   int64 // of one body in memory; 0 is Memory
	Files  int64 // bytes of all bodies in files; 0: no files
	Dir    string
	// Share is the part of Memory and of Files that one client may have; 0 is all.
	Share float64
	// Grace is how long a body may take to begin before it counts as slow; 0 is a
	// second.
	Grace time.Duration
	// Fast is how many bytes a second arrive of a body that Oust leaves alone; 0 is 64 KiB.
	// It ends soon, and to begin it again would take more.
	Fast int64
	// Unfiled, if set, is called when a body has to stay in memory because there is
	// no file to be had.
	Unfiled func(err error)
	Now     func() time.Time // nil: time.Now
}

// The accounts.
const (
	memory = iota
	files
	places
)

// Spool is the accounts of all bodies. It is safe for concurrent use.
type Spool struct {
	cfg   Config
	limit [places]int64

	mu      sync.Mutex
	used    [places]int64
	clients map[Client]*client
	// Those that are being read are a list, the newest first.
	first, last *Body
	bodies      int // of them
}

// client is what one client holds. Its bodies have it, as to look it up for each change of
// an account costs more than all else here.
type client struct {
	name   Client
	used   [places]int64
	bodies int
}

// New returns a Spool without bodies.
func New(cfg Config) *Spool {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Grace = cmp.Or(cfg.Grace, time.Second)
	cfg.Fast = cmp.Or(cfg.Fast, 64<<10)
	cfg.Share = cmp.Or(cfg.Share, 1)
	cfg.Each = min(cmp.Or(cfg.Each, cfg.Memory), cfg.Memory)
	return &Spool{cfg: cfg, limit: [places]int64{cfg.Memory, cfg.Files}, clients: make(map[Client]*client)}
}

// Stats is what a Spool holds.
type Stats struct {
	Memory, Files int64 // bytes
	Bodies        int   // that are being read
}

// Stats returns it.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Memory: s.used[memory], Files: s.used[files], Bodies: s.bodies}
}

// take books n more bytes of a place for the body, and drops slower bodies for
// that, if there are any.
func (s *Spool) take(b *Body, place int, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := b.client
	for {
		own := s.cfg.Share < 1 && c.used[place]+n > int64(s.cfg.Share*float64(s.limit[place]))
		switch {
		case b.out:
			return ErrSlow
		case !own && s.used[place]+n <= s.limit[place]:
			s.book(b, place, n)
			return nil
		case place == memory && s.limit[files] > 0 && !b.noFile:
			return ErrNoRoom // there may be some in a file
		}
		slow, _ := s.slowest(func(x *Body) bool { return (x == b || x.used[place] > 0) && (!own || x.client == c) })
		switch {
		case slow != nil && slow != b:
			s.drop(slow)
		case own:
			return ErrShare
		default:
			return ErrNoRoom
		}
	}
}

// book adds n bytes, which may be negative, to all accounts. s.mu is held.
func (s *Spool) book(b *Body, place int, n int64) {
	b.used[place] += n
	s.used[place] += n
	b.client.used[place] += n
}

// Oust drops the placed body that arrives slowest, of the client's if only own, and reports
// whether there was one that is slow.
func (s *Spool) Oust(from Client, own bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	slow, rate := s.slowest(func(x *Body) bool { return x.placed && (!own || x.client.name == from) })
	if slow == nil || rate >= float64(s.cfg.Fast) {
		return false
	}
	s.drop(slow)
	return true
}

// slowest returns the body that arrives slowest among those that may be meant, and how many
// bytes come of it in a second. None is slow at first. s.mu is held.
func (s *Spool) slowest(meant func(x *Body) bool) (slow *Body, least float64) {
	now := s.cfg.Now()
	for x := s.last; x != nil; x = x.prev {
		age := now.Sub(x.begun)
		if age < s.cfg.Grace {
			break // so are all after it
		}
		if x.out || !meant(x) {
			continue
		}
		if rate := float64(x.come.Load()) / age.Seconds(); slow == nil || rate < least {
			slow, least = x, rate
		}
	}
	return slow, least
}

// drop takes the body's room and ends its reading. s.mu is held.
func (s *Spool) drop(b *Body) {
	b.out = true
	for place := range places {
		s.book(b, place, -b.used[place])
	}
	b.end()
}
