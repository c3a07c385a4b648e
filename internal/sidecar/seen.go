package sidecar

import (
	"strings"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/registry"
)

// maxSeenError bounds the text of an error in the registration.
const maxSeenError = 256

// seenError is a text that may be announced; empty where there is none.
func seenError(p *atomic.Pointer[string]) string {
	why := p.Load()
	if why == nil {
		return ""
	}
	return strings.ToValidUTF8((*why)[:min(len(*why), maxSeenError)], "")
}

// seen is what is announced of each rank's engine, for those who look for what is
// configured wrong. It names what there was, and counts nothing: a registration is
// written again when it changes.
func (s *Sidecar) seen() []registry.Seen {
	if !s.up.Load() {
		return nil
	}
	list := make([]registry.Seen, 0, len(s.streams))
	for i, st := range s.streams {
		n := registry.Seen{DPRank: st.cfg.dpRank, BlockSize: uint32(st.otherSize.Load()), Batches: s.socket != nil}
		n.Error, n.Waits = seenError(&st.interrupted), seenError(&st.waits)
		for t := range event.Tier(event.NumTiers) {
			if st.tiers.Load()&(1<<t) != 0 {
				n.Tiers = append(n.Tiers, t.String())
			}
		}
		if s.socket == nil {
			stats := s.feeds[i].Stats()
			n.Batches, n.Salted = stats.Batches > 0, stats.Salted
			n.Replay = registry.ReplayOf(s.cfg.Replay, stats.ReplayDown, s.cfg.Snapshot, stats.SnapshotDown)
			n.LeftOut, n.Lost = stats.Reasons()
		}
		list = append(list, n)
	}
	return list
}
