package snapshot

import (
	"fmt"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// counter adds up what the runs of one section have, and their digest.
type counter struct {
	space uint64
	ranks []Publisher
	sum   Footer
	above map[uint64]above // run<<32|offset: what runs leave there
	seq   []uint64
}

// above is the sequence hash of the block that runs follow.
type above struct {
	seq  uint64
	left int // runs that may still follow
}

func newCounter(m *Meta) *counter {
	return &counter{space: shard.SpaceHash(event.Space(m.Space)), ranks: m.Ranks, above: make(map[uint64]above)}
}

// addGroup adds blocks of a cache group to the digest. As elsewhere full attention alone is
// counted.
func (c *counter) addGroup(h core.Holder, ev *event.Event, copies []uint32) {
	r := &c.ranks[h]
	for i, name := range ev.Engine {
		c.sum.Digest += core.DigestTerm(c.space, r.Worker, r.DPRank, ev.Tier, uint32(ev.Group), name, 0, copies[i])
	}
}

func (c *counter) add(p *core.Piece) error {
	c.sum.Runs++
	c.sum.Blocks += uint64(len(p.Local))
	c.seq = c.seq[:0]
	for i, l := range p.Local {
		switch {
		case i > 0:
			l = blockhash.NextSequenceHash(c.seq[i-1], l)
		case p.Parent != 0:
			k := uint64(p.Parent)<<32 | uint64(p.Offset)
			a, ok := c.above[k]
			if !ok {
				return fmt.Errorf("%w: run %d leaves run %d, which is not before it", ErrDamaged, p.Number, p.Parent)
			}
			if a.left--; a.left == 0 {
				delete(c.above, k)
			} else {
				c.above[k] = a
			}
			l = blockhash.NextSequenceHash(a.seq, l)
		}
		c.seq = append(c.seq, l)
	}
	for _, off := range p.Children {
		if off == 0 || int(off) > len(c.seq) {
			return fmt.Errorf("%w: a run leaves run %d of %d blocks after %d", ErrDamaged, p.Number, len(c.seq), off)
		}
		k := uint64(p.Number)<<32 | uint64(off)
		a := c.above[k]
		c.above[k] = above{c.seq[off-1], a.left + 1}
	}
	for _, h := range p.Held {
		r := &c.ranks[h.Holder]
		for i, e := range p.Engine[:h.Blocks] {
			c.sum.Digest += core.DigestTerm(c.space, r.Worker, r.DPRank, event.Device, 0, e, c.seq[i], 1)
		}
		c.sum.Held[event.Device] += uint64(h.Blocks)
	}
	for i := range p.Exceptions {
		r := &c.ranks[p.Exceptions[i].Holder]
		for j := range p.Exceptions[i].Hashes {
			e := &p.Exceptions[i].Hashes[j]
			for pos := e.Pos; pos <= e.Pos+e.More; pos++ {
				hash := e.Engine
				if e.Shared {
					hash = p.Engine[pos]
				}
				for t, k := range e.Copies {
					if k > 0 {
						c.sum.Digest += core.DigestTerm(c.space, r.Worker, r.DPRank, event.Tier(t), 0, hash, c.seq[pos], k)
						c.sum.Held[t]++
					}
				}
			}
		}
	}
	return nil
}
