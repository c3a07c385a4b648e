package sidecar

import (
	"strings"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/registry"
)

// maxSeenError bounds the text of an error in the registration.
const maxSeenError = 256

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
		if why := st.interrupted.Load(); why != nil {
			n.Error = strings.ToValidUTF8((*why)[:min(len(*why), maxSeenError)], "")
		}
		for t := range event.Tier(event.NumTiers) {
			if st.tiers.Load()&(1<<t) != 0 {
				n.Tiers = append(n.Tiers, t.String())
			}
		}
		if s.socket == nil {
			stats := s.feeds[i].Stats()
			n.Batches, n.Salted = stats.Batches > 0, stats.Salted
			switch {
			case s.cfg.Replay == "":
				n.Replay = registry.ReplayNone
			case stats.ReplayDown:
				n.Replay = registry.ReplayUnreachable
			}
			n.LeftOut, n.Lost = stats.Reasons()
		}
		list = append(list, n)
	}
	return list
}
