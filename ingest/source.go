package ingest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// source is one stream of a space, as its reader and the space's partitions know it: each
// stream has a window, a position and an end of its own. A worker's events are in one of
// them. It is safe for concurrent use.
type source struct {
	window *window
	looked atomic.Pointer[looked]
	end    atomic.Uint64 // where the stream ends, as far as known
}

// looked is what is known of a stream beside its messages: when the one that is
// read was made, zero if none is, how often that was seen to be the present one, and
// where it ended at the last of these looks.
type looked struct {
	created    time.Time
	looks, end uint64
}

// stream returns what is known of the stream.
func (s *source) stream() looked {
	if l := s.looked.Load(); l != nil {
		return *l
	}
	return looked{}
}

// reads notes that the stream made then is read. The reader calls it.
func (s *source) reads(created time.Time) {
	for {
		l := s.looked.Load()
		is := looked{created: created}
		if l != nil {
			if is.looks = l.looks; l.created.Equal(created) {
				return
			}
		}
		if s.looked.CompareAndSwap(l, &is) {
			return
		}
	}
}

// endsAt notes where the stream made then ends. Of another one than is read that says
// nothing.
func (s *source) endsAt(created time.Time, end uint64) {
	if l := s.looked.Load(); l != nil && l.created.Equal(created) {
		s.looked.CompareAndSwap(l, &looked{created: created, looks: l.looks + 1, end: end}) // else it was looked at in vain
	}
}

// sources are the streams of a space, by their number. Those that the space no longer has
// stay, as their readers do: only of says which there are. One goroutine at a time writes.
type sources struct {
	all atomic.Pointer[[]*source]
	of  atomic.Int32
}

// divide makes it so many streams.
func (s *sources) divide(of int, cfg *Config) {
	var all []*source
	if p := s.all.Load(); p != nil {
		all = append(all, *p...)
	}
	for len(all) < of {
		all = append(all, &source{window: newWindow(cfg.MaxMessages, cfg.MaxBytes)})
	}
	s.all.Store(&all)
	s.of.Store(int32(of))
}

// source returns the one that the worker's events are in.
func (s *sources) source(worker uint64) *source {
	return (*s.all.Load())[stream.Partition(worker, int(s.of.Load()))]
}

// part returns the one of that number, if the space is divided so.
func (s *sources) part(info *stream.Info) (*source, error) {
	if of := int(s.of.Load()); info.Partitions != of {
		return nil, fmt.Errorf("%w: it is one of %d streams, and the space has %d", ErrDivided, info.Partitions, of)
	}
	return (*s.all.Load())[info.Partition], nil
}
