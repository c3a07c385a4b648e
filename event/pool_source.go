package event

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// PoolSource is a pool's own stream: that of the store's master, which says of each object when
// it comes and goes (Mooncake's, RFC 1527). What workers say of the pool does not count then.
type PoolSource struct {
	// Events is where the master publishes, Keys where it lists what there is (its HTTP port,
	// for GET /get_all_keys): what a stream without a replay is begun from, and goes on from where it broke.
	Events string `json:"events"`
	Keys   string `json:"keys"`
	// Prefix is what objects of this model's workers are called by before their ranks, whole:
	// vLLM's cache_prefix and model as cache_prefix@model, or the model alone; the tag of SGLang's
	// keys, or nothing.
	Prefix string `json:"prefix,omitempty"`
	// Parts is how many objects one block is stored as: one for each tensor, pipeline and
	// context rank that stores a part of its own, for each group of Groups, and for keys and values where
	// they are apart (SGLang without MLA). A block is there while all are.
	Parts uint32 `json:"parts"`
	// Groups are the numbers of vLLM's cache groups that store each block; none: 0 alone.
	Groups []uint32 `json:"groups,omitempty"`
}

// MaxPoolParts is how many objects a block may be stored as.
const MaxPoolParts = 64

// Equal reports whether both say the same; nil is none.
func (s *PoolSource) Equal(o *PoolSource) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.Events == o.Events && s.Keys == o.Keys && s.Prefix == o.Prefix && s.Parts == o.Parts && slices.Equal(s.Groups, o.Groups)
}

func (s *PoolSource) check(p *Pool) error {
	const most = 1024 // bytes of a text, and groups
	u, err := url.Parse(s.Keys)
	switch {
	case !strings.HasPrefix(s.Events, "tcp://") && !strings.HasPrefix(s.Events, "ipc://"):
		return fmt.Errorf("%w: the source of pool %q has events %q, give tcp://host:port", errPools, p.Name, s.Events)
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return fmt.Errorf("%w: the source of pool %q has keys that are no http:// or https:// URL without password and query: they are what it is begun from", errPools, p.Name)
	case s.Parts == 0 || s.Parts > MaxPoolParts:
		return fmt.Errorf("%w: the source of pool %q has %d parts, give 1 to %d: how many objects a block is stored as", errPools, p.Name, s.Parts, MaxPoolParts)
	case max(len(s.Events), len(s.Keys), len(s.Prefix), len(s.Groups)) > most:
		return fmt.Errorf("%w: a text or list of the source of pool %q is longer than %d", errPools, p.Name, most)
	case p.Age > 0 || p.OwnNames:
		return fmt.Errorf("%w: pool %q has a source, which tells what leaves, by the engines' hashes: give neither age nor own_names", errPools, p.Name)
	}
	return nil
}
