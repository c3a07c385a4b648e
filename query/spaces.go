package query

import (
	"slices"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// appendHeld appends how many blocks each rank of every space holds in all, and which
// ranks are stale.
func appendHeld(dst []byte, ix Index, stale map[event.Space]map[shard.RankID]bool) []byte {
	dst = append(dst, `{"spaces":[`...)
	open := `{"model":`
	for _, sp := range ix.Spaces() {
		space := ix.Space(sp)
		if space == nil { // gone since
			continue
		}
		dst = append(dst, open...)
		open = `,{"model":`
		dst = appendString(dst, sp.Model)
		dst = append(dst, `,"group":`...)
		dst = appendString(dst, sp.Group)
		dst = appendUint(dst, `,"block_size":`, uint64(sp.BlockSize))
		dst = append(dst, `,"ranks":[`...)
		for i, rank := range slices.DeleteFunc(space.Ranks(), isPool) {
			if i > 0 {
				dst = append(dst, ',')
			}
			blocks := uint64(0)
			for _, n := range rank.Held {
				blocks += uint64(n)
			}
			dst = appendUint(dst, `{"worker_id":"`, rank.Worker)
			dst = appendUint(dst, `","dp_rank":`, uint64(rank.DPRank))
			dst = appendUint(dst, `,"blocks":`, blocks)
			if stale[sp][rank.RankID] {
				dst = append(dst, `,"stale":true`...)
			}
			dst = append(dst, '}')
		}
		dst = append(dst, "]}"...)
	}
	return append(dst, "]}\n"...)
}

// appendSpaces appends what there is of every space: workers, ranks and
// blocks by tier. An empty model means every model.
func appendSpaces(dst []byte, ix Index, model []byte) []byte {
	dst = append(dst, `{"spaces":[`...)
	first := true
	for _, sp := range ix.Spaces() {
		if len(model) > 0 && string(model) != sp.Model {
			continue
		}
		space := ix.Space(sp)
		if space == nil { // gone since
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, `{"model":`...)
		dst = appendString(dst, sp.Model)
		dst = append(dst, `,"group":`...)
		dst = appendString(dst, sp.Group)
		dst = appendUint(dst, `,"block_size":`, uint64(sp.BlockSize))
		held := slices.DeleteFunc(space.Ranks(), isPool)
		var blocks [event.NumTiers]uint64
		workers := uint64(0)
		for i := range held {
			if i == 0 || held[i].Worker != held[i-1].Worker {
				workers++
			}
			for t, n := range held[i].Held {
				blocks[t] += uint64(n)
			}
		}
		dst = appendUint(dst, `,"workers":`, workers)
		dst = appendUint(dst, `,"ranks":`, uint64(len(held)))
		dst = append(dst, `,"blocks":{`...)
		dst = appendUint(dst, `"device":`, blocks[event.Device])
		dst = appendUint(dst, `,"host_pinned":`, blocks[event.HostPinned])
		dst = appendUint(dst, `,"disk":`, blocks[event.Disk])
		dst = appendUint(dst, `,"external":`, blocks[event.External])
		dst = append(dst, '}')
		dst = appendPools(dst, space.Pools())
		dst = append(dst, '}')
	}
	return append(dst, "]}\n"...)
}

// appendPools appends a space's pools as a member, none where there are none.
func appendPools(dst []byte, pools []shard.PoolStat) []byte {
	if len(pools) == 0 {
		return dst
	}
	open := `,"pools":[{"pool":`
	for _, p := range pools {
		dst = append(dst, open...)
		open = `,{"pool":`
		dst = appendString(dst, p.Name)
		dst = appendUint(dst, `,"blocks":`, uint64(p.Blocks))
		dst = appendUint(dst, `,"workers":`, uint64(p.Workers))
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

func isPool(r shard.RankStat) bool { return r.Pool() }
