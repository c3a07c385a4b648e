package event

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Pool is a store of blocks that several workers read from: Mooncake's, LMCache's, storage
// behind SGLang's HiCache or vLLM's offloading. What is in it is the pool's, whoever of the
// workers that name it has said so.
type Pool struct {
	Name string `json:"name"`
	// Tiers are those of the worker's events, as Tier writes them, whose blocks are in the
	// pool; none means external.
	Tiers []string `json:"tiers,omitempty"`
	// Chunk is how many tokens can only be read as a whole; 0: those of a block.
	Chunk uint32 `json:"chunk,omitempty"`
	// OwnNames says that the pool's events call blocks otherwise than the worker's engine
	// does, and tell their tokens (LMCache). Else they go by the engine's hashes alone.
	OwnNames bool `json:"own_names,omitempty"`
	// Age is after how many seconds without being said again a block counts as gone, and a third
	// of that later at most it is; 0: when it is said to be. It is for stores whose events do
	// not tell what leaves. Of several workers' the longest counts.
	Age uint32 `json:"age,omitempty"`
	// Source is the pool's own stream; nil: what is in it is what workers say. Where several
	// workers give one, that of the lowest id counts.
	Source *PoolSource `json:"source,omitempty"`
}

// PoolRank is the rank of a pool in an index, where its worker is [WorkerID] of its name. No
// event and no registration may name it.
const PoolRank uint32 = math.MaxUint32

// maxPools is how many pools a worker may name, one for each tier below the device.
const (
	maxPools    = NumTiers - 1
	maxPoolName = 256
	minPoolAge  = 30 // replicas look every few seconds
)

var (
	errPools    = errors.New("these pools cannot be")
	errPoolRank = fmt.Errorf("%w: %w", ErrMalformed, errRank)
)

// TierList returns the pool's tiers: none but for one that CheckPools refuses.
func (p *Pool) TierList() []Tier {
	if len(p.Tiers) == 0 {
		return []Tier{External}
	}
	var list []Tier
	for _, name := range p.Tiers {
		t, ok := ParseTier([]byte(name))
		if !ok {
			return nil
		}
		list = append(list, t)
	}
	return list
}

// PoolOf reports whether one of the pools has the tier.
func PoolOf(list []Pool, t Tier) bool {
	return slices.ContainsFunc(list, func(p Pool) bool { return slices.Contains(p.TierList(), t) })
}

// Equal reports whether both say the same.
func (p Pool) Equal(o Pool) bool {
	return p.Name == o.Name && p.Chunk == o.Chunk && p.OwnNames == o.OwnNames && p.Age == o.Age && slices.Equal(p.TierList(), o.TierList()) && p.Source.Equal(o.Source)
}

// CheckPools refuses lists in which a pool has no name, a tier is nobody's or that of two,
// or is the engine's device, which is nobody else's.
func CheckPools(list []Pool) error {
	if len(list) > maxPools {
		return fmt.Errorf("%w: %d, give at most %d", errPools, len(list), maxPools)
	}
	var taken [NumTiers]bool
	for i := range list {
		p := &list[i]
		tiers := p.TierList()
		switch {
		case p.Name == "" || len(p.Name) > maxPoolName || !utf8.ValidString(p.Name) || strings.ContainsFunc(p.Name, unicode.IsControl):
			return fmt.Errorf("%w: a name has 1 to %d bytes of UTF-8 without control characters", errPools, maxPoolName)
		case len(tiers) == 0:
			return fmt.Errorf("%w: pool %q has tiers %q, give host_pinned, disk or external", errPools, p.Name, p.Tiers)
		case p.Chunk > maxGroupTokens:
			return fmt.Errorf("%w: pool %q has chunks of %d tokens, give at most %d", errPools, p.Name, p.Chunk, maxGroupTokens)
		}
		if p.Age > 0 && p.Age < minPoolAge {
			return fmt.Errorf("%w: the age of pool %q is %d seconds, give %d at least", errPools, p.Name, p.Age, minPoolAge)
		}
		if p.Source != nil {
			if err := p.Source.check(p); err != nil {
				return err
			}
		}
		for _, t := range tiers {
			if t == Device || taken[t] {
				return fmt.Errorf("%w: tier %v of pool %q is the engine's own, or another pool's too", errPools, t, p.Name)
			}
			taken[t] = true
		}
	}
	return nil
}
