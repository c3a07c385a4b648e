package query

import (
	"github.com/kvatlas/kvatlas/event"
)

// appendSpaceMatches appends one space's answer. What was found is sorted.
func appendSpaceMatches(dst []byte, sp event.Space, blocks int, found *Found, sizes, estimated bool) []byte {
	ranks := found.ranks
	dst = append(dst, `{"group":`...)
	dst = appendString(dst, sp.Group)
	dst = appendUint(dst, `,"block_size":`, uint64(sp.BlockSize))
	dst = appendUint(dst, `,"blocks":`, uint64(blocks))
	if estimated {
		dst = append(dst, `,"estimated":true`...)
	}
	for i, p := range found.pools {
		if i == 0 {
			dst = append(dst, `,"pools":[{"pool":`...)
		} else {
			dst = append(dst, `,{"pool":`...)
		}
		dst = appendString(dst, p.Name)
		dst = appendUint(dst, `,"external":`, uint64(p.Depth))
		dst = append(dst, '}')
	}
	if len(found.pools) > 0 {
		dst = append(dst, ']')
	}
	dst = append(dst, `,"workers":[`...)
	var last writtenDepths
	for i := 0; i < len(ranks); {
		worker, best, held, end := ranks[i].Worker, ranks[i].depth, ranks[i].held, i+1
		for ; end < len(ranks) && ranks[end].Worker == worker; end++ {
			held += ranks[end].held
			for t, d := range ranks[end].depth {
				best[t] = max(best[t], d)
			}
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		longest := uint64(best[event.NumTiers-1])
		dst = appendUint(dst, `{"worker_id":"`, worker)
		dst = append(dst, '"')
		dst = last.append(dst, &best)
		dst = appendUint(dst, `,"longest":`, longest)
		dst = appendUint(dst, `,"tokens":`, longest*uint64(sp.BlockSize))
		if sizes {
			dst = appendUint(dst, `,"tree_size":`, held)
		}
		dst = append(dst, `,"ranks":[`...)
		for j := i; j < end; j++ {
			if j > i {
				dst = append(dst, ',')
			}
			dst = appendUint(dst, `{"dp_rank":`, uint64(ranks[j].DPRank))
			dst = last.append(dst, &ranks[j].depth)
			if sizes {
				dst = appendUint(dst, `,"tree_size":`, ranks[j].held)
			}
			dst = append(dst, '}')
		}
		dst = append(dst, "]}"...)
		i = end
	}
	return append(dst, "]}"...)
}

// writtenDepths remembers where depths were written last: of many workers they
// are the same, and copying is cheaper than writing numbers.
type writtenDepths struct {
	depth      [event.NumTiers]uint32
	start, end int // in dst
}

func (w *writtenDepths) append(dst []byte, depth *[event.NumTiers]uint32) []byte {
	if w.end > 0 && w.depth == *depth {
		return append(dst, dst[w.start:w.end]...)
	}
	w.depth, w.start = *depth, len(dst)
	dst = appendUint(dst, `,"device":`, uint64(depth[event.Device]))
	dst = appendUint(dst, `,"host_pinned":`, uint64(depth[event.HostPinned]))
	dst = appendUint(dst, `,"disk":`, uint64(depth[event.Disk]))
	dst = appendUint(dst, `,"external":`, uint64(depth[event.External]))
	w.end = len(dst)
	return dst
}
