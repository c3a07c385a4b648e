package replica

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/route/load"
)

// peer is another router as this one knows it.
type peer struct {
	heard  time.Time
	asked  time.Time // when its snapshot was last asked for
	synced bool      // its bookings are known as of its message last
	last   uint64
	newest uint64 // highest number heard of

	early      []early // messages beyond last+1, by rising number
	earlyBytes int
	snapshot   assembly
}

// early is a message of changes that came before one that it builds upon.
type early struct {
	number  uint64
	changes []load.Change
	bytes   int
}

// assembly collects the parts of a snapshot. Parts of a newer one replace it;
// two of the same state may be cut differently, so each has a serial.
type assembly struct {
	serial uint64
	parts  map[uint64][]load.Change
	end    uint64 // how many parts there are; 0 while unknown
	bytes  int
}

// current reports whether nothing of the peer's is known to be missing.
func (f *peer) current() bool { return f.synced && f.newest <= f.last }

// Receive takes a message of another router. The error wraps ErrMalformed; the
// message is dropped and counted then.
func (p *Replicas) Receive(msg []byte) error {
	h, rest, err := readHeader(msg)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.mu.stats.Malformed++
		return err
	}
	if h.from == p.cfg.ID {
		if h.scope == p.cfg.Scope && p.mu.echo.heard(h, p.cfg.Now()) && p.cfg.Delay != nil {
			p.cfg.Delay(p.mu.echo.delay())
		}
		return nil
	}
	from := p.mu.peers[h.from]
	if h.scope != p.cfg.Scope || from == nil && len(p.mu.peers) >= p.cfg.MaxPeers {
		p.mu.stats.Foreign++
		return nil
	}
	if h.kind == typeLeaving {
		if from != nil {
			p.forget(h.from)
		}
		return nil
	}
	r := reader{rest: rest}
	var place place
	var changes []load.Change
	switch h.kind {
	case typeSnapshot:
		place.serial, place.part, place.last = r.uvarint(maxCount), r.uvarint(maxCount), r.byte() == 1
		changes = r.changes(h.from)
	case typeChanges, typeBids, typeFetches, typeFailing:
		changes = r.changes(h.from)
	case typeHeartbeat, typeWanted:
	default:
		r.fail("unknown type")
	}
	if r.err != nil {
		p.mu.stats.Malformed++
		return fmt.Errorf("from router %d: %w", h.from, r.err)
	}

	now := p.cfg.Now()
	if from == nil {
		from = &peer{}
		p.mu.peers[h.from] = from
		p.alone.Store(false)
	}
	from.heard, from.newest = now, max(from.newest, h.number)
	switch h.kind {
	case typeWanted:
		if !slices.Contains(p.mu.askers, h.from) {
			p.mu.askers = append(p.mu.askers, h.from)
		}
		p.signal()
	case typeChanges:
		p.takeChanges(from, early{h.number, changes, len(msg)})
	case typeBids, typeFetches, typeFailing:
		for i := range changes {
			if fleeting(changes[i].Kind) == h.kind {
				p.cfg.State.Apply(changes[i])
			}
		}
	case typeSnapshot:
		p.takeSnapshot(h.from, from, h.number, place, changes, len(msg))
	}
	if !from.current() {
		return p.ask(h.from, from, now)
	}
	return nil
}

// takeChanges applies a message that is next, and keeps one that is early.
func (p *Replicas) takeChanges(from *peer, e early) {
	if from.synced && e.number <= from.last {
		p.mu.stats.Duplicate++
		return
	}
	i, found := slices.BinarySearchFunc(from.early, e.number, func(e early, n uint64) int { return cmp.Compare(e.number, n) })
	if found {
		p.mu.stats.Duplicate++
		return
	}
	if from.earlyBytes+e.bytes > p.cfg.QueueBytes {
		// A snapshot has to cover them all.
		p.mu.stats.Overflow++
		from.early, from.earlyBytes = nil, 0
		return
	}
	from.early = slices.Insert(from.early, i, e)
	from.earlyBytes += e.bytes
	p.advance(from)
}

// advance applies the messages that have become next.
func (p *Replicas) advance(from *peer) {
	if !from.synced {
		return
	}
	n := 0
	for ; n < len(from.early) && from.early[n].number <= from.last+1; n++ {
		e := &from.early[n]
		from.earlyBytes -= e.bytes
		if e.number <= from.last {
			continue // a snapshot has covered it
		}
		for i := range e.changes {
			p.cfg.State.Apply(e.changes[i])
		}
		p.mu.stats.Applied++
		from.last = e.number
	}
	from.early = slices.Delete(from.early, 0, n)
}

// place is where a message belongs in which snapshot.
type place struct {
	serial, part uint64
	last         bool
}

func (s place) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, s.serial)
	dst = binary.AppendUvarint(dst, s.part)
	if s.last {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// takeSnapshot adds a part, and takes the snapshot over when it is whole.
func (p *Replicas) takeSnapshot(id uint64, from *peer, number uint64, at place, changes []load.Change, bytes int) {
	a := &from.snapshot
	switch {
	case from.synced && number <= from.last, a.parts != nil && at.serial < a.serial:
		p.mu.stats.Duplicate++
		return
	case a.parts == nil || at.serial > a.serial:
		*a = assembly{serial: at.serial, parts: make(map[uint64][]load.Change)}
	}
	if _, known := a.parts[at.part]; known {
		p.mu.stats.Duplicate++
		return
	}
	if a.bytes += bytes; a.bytes > p.cfg.SnapshotBytes {
		p.mu.stats.Overflow++
		*a = assembly{}
		return
	}
	a.parts[at.part] = changes
	if at.last {
		a.end = at.part + 1
	}
	if uint64(len(a.parts)) != a.end {
		return
	}
	whole := *a
	*a = assembly{}
	p.cfg.State.Replace(id, func(yield func(load.Change) bool) {
		for i := range whole.end {
			for _, c := range whole.parts[i] {
				if !yield(c) {
					return
				}
			}
		}
	})
	p.mu.stats.Snapshots++
	from.synced, from.last = true, number
	p.advance(from)
}

// ask asks a router for its snapshot, unless that was done a moment ago.
func (p *Replicas) ask(id uint64, from *peer, now time.Time) error {
	if now.Sub(from.asked) < p.cfg.Retry {
		return nil
	}
	from.asked = now
	p.mu.stats.Gaps++
	if err := p.cfg.Transport.Send(id, p.header(typeWanted)); err != nil {
		return fmt.Errorf("asking a router for its bookings: %w", err)
	}
	return nil
}
