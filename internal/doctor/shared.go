package doctor

import (
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// deaf says why nobody answers at the first of the worker's addresses of these kinds; "" for the reason if all do.
func (f *Facts) deaf(what ...string) (at Place, why string) {
	for _, p := range Places(&f.Worker) {
		if slices.Contains(what, p.What) && f.Deaf[p] != "" {
			return p, f.Deaf[p]
		}
	}
	return Place{}, ""
}

// pools looks at the stores that the worker shares with others.
func pools(f *Facts) []finding {
	list := f.Worker.Pools
	if len(list) == 0 {
		return nil
	}
	if p, why := f.deaf(EventsPlace, KeysPlace); why != "" {
		return one(Fault, "is the source of --pools where the store's master publishes (-kv_events_bind_endpoint), and its HTTP port (-metrics_port)?",
			"nobody answers at %s (%s) of pool %q: %s", p.At, p.What, p.Pool, why)
	}
	if f.Pool == nil {
		return nil
	}
	const alike = "compare --pools with those of the model's other workers"
	lone := ""
	for i := range list {
		name, from := list[i].Name, list[i].Source
		said, sharers := said(&list[i]), 0
		for _, n := range f.Pool.stores[name] {
			sharers += n
		}
		switch {
		case !agreed(f.Pool.stores[name], said):
			return one(Warning, alike, "of pool %q it says %s, and others do not", name, said)
		case from != nil && !agreed(f.Pool.sources[name], source(from)):
			return one(Warning, alike, "of pool %q it gives the source %s, and others another", name, source(from))
		case sharers == 1 && len(f.Pool.stores) > 1:
			lone = name
		}
	}
	if lone == "" {
		return fine("%d", len(list))
	}
	for other, of := range f.Pool.stores {
		n := 0
		for _, k := range of {
			n += k
		}
		if n > 1 && !slices.ContainsFunc(list, func(p event.Pool) bool { return p.Name == other }) {
			return one(Warning, alike+": those that share a store name it alike", "no other worker of its model names pool %q, others share another", lone)
		}
	}
	return one(Unknown, "", "no other worker of its model names pool %q: nothing is shared", lone)
}

// peer looks at where others fetch prefixes that it has.
func peer(f *Facts) []finding {
	at := f.Worker.Endpoints.Peer
	if at == "" {
		return nil
	}
	if p, why := f.deaf(PeerPlace); why != "" {
		return one(Fault, "is --peer where the engine gives prefixes to others (VLLM_P2P_SIDE_CHANNEL_HOST and _PORT)?", "nobody answers at %s: %s", p.At, why)
	}
	for _, p := range Places(&f.Worker) {
		if p.What == PeerPlace && f.Pool != nil && len(f.Pool.peers[p.At]) > 1 {
			return one(Warning, "give each kvpublisher its own engine's --peer", "its address for others, %s, is that of another engine, too", p.At)
		}
	}
	if f.Engine == nil {
		return nil // nobody has tried
	}
	return fine("%s", at)
}
