package query

import (
	"slices"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
)

// POST /query and /query_by_hash, in the forms of two APIs: of Mooncake's RFC
// 1403 if the body names "model", of Dynamo's standalone indexer if it names
// "model_name". Fields of neither are ignored, as those servers do. Counts are
// in tokens.
//
// Dynamo's "block_hashes" are local hashes, the RFC's "seq_hashes" (once
// "block_hash") are sequence hashes; both may be written with a sign.

// indexerRequest is the body of either route.
type indexerRequest struct {
	tenant      []byte // the RFC's; Dynamo's group is the request's
	instance    uint64
	hasInstance bool
	rfc         bool
}

// parseIndexer reads a body of /query, or of /query_by_hash.
//
// The body is not trusted to be of one form: which of the two it is shows only when all of it is read, as fields come in any
// order: so both forms' fields are taken, and judged together afterwards. Of a field that
// is given twice the last one counts.
func (r *findRequest) parseIndexer(body []byte, byHash bool, maxTokens int) (x indexerRequest, p *edge.Problem) {
	r.reset()
	s := &r.in
	s.Reset(body)
	defer s.Reset(nil)
	if !s.Open('{') {
		return x, edge.FieldProblem(s.Err(), "body", "a JSON object")
	}
	var model, modelName, group, tenant []byte
	var hasGroup, hasTenant, salted, loraID bool
	for first := true; s.More('}', &first) && p == nil; {
		name := s.Key() // until the next read
		if s.Err() != nil {
			break
		}
		if s.Null() || s.Err() != nil {
			continue
		}
		switch string(name) {
		case "model_name":
			modelName, p = r.name("model_name")
		case "model":
			model, p = r.name("model")
		case "routing_group":
			group, p = r.name("routing_group")
			hasGroup = true
		case "tenant_id":
			tenant, p = r.name("tenant_id")
			hasTenant = true
		case "lora_name":
			r.lora, p = r.name("lora_name")
		case "lora_id":
			loraID = true
			s.Skip()
		case "cache_salt":
			r.salt, p = r.name("cache_salt")
			salted = true
		case "block_size":
			r.blockSize, p = r.number("block_size", blockhash.MaxBlockSize)
		case "instance_id":
			x.instance, p = r.instance()
			x.hasInstance = true
		case "token_ids":
			if byHash {
				s.Skip()
				continue
			}
			r.has |= fieldTokens
			p = r.tokenArray("token_ids", maxTokens)
		case "block_hashes":
			if byHash {
				r.sequence, p = false, r.signedHashes("block_hashes", maxTokens)
				continue
			}
			s.Skip()
		case "seq_hashes", "block_hash":
			if byHash {
				r.sequence, p = true, r.signedHashes("seq_hashes", maxTokens)
				continue
			}
			s.Skip()
		default:
			s.Skip()
		}
	}
	if p != nil {
		return x, p
	}
	if s.End(); s.Err() != nil {
		return x, edge.FieldProblem(s.Err(), "body", "JSON")
	}
	x.rfc = modelName == nil && model != nil
	if r.model, r.group = modelName, group; x.rfc {
		r.model, r.group, hasGroup = model, tenant, hasTenant
	}
	if !hasGroup {
		r.group = nil
	}
	r.has |= fieldModel | fieldGroup
	// The answer names the group as it was asked for; one that was not, as the APIs call it.
	if x.tenant = r.group; !hasGroup {
		x.tenant = r.keep([]byte(registry.DefaultGroup))
	}
	if string(r.group) == registry.DefaultGroup { // which has no name here
		r.group = nil
	}
	return x, r.checkIndexer(&x, byHash, salted, loraID && len(r.lora) > 0)
}

func (r *findRequest) signedHashes(field string, limit int) *edge.Problem {
	r.has |= fieldHashes
	return r.hashArray(field, limit, true)
}

// instance takes the id of a worker: a number, or a name.
func (r *findRequest) instance() (uint64, *edge.Problem) {
	if r.in.Peek() != '"' {
		v := r.in.Uint64()
		if r.in.Err() != nil {
			return 0, edge.FieldProblem(r.in.Err(), "instance_id", "a whole number of 64 bits, or a name")
		}
		return v, nil
	}
	name, p := r.name("instance_id")
	return event.WorkerID(string(name)), p
}

func (r *findRequest) checkIndexer(x *indexerRequest, byHash, salted, bothLoras bool) *edge.Problem {
	switch {
	case r.model == nil:
		return edge.Bad("model_name", edge.Missing, "model_name is missing (in the form of RFC 1403: model)")
	case bothLoras:
		return edge.Bad("lora_id", edge.Conflict, "give lora_name or lora_id, not both")
	case x.rfc && r.blockSize == 0:
		return edge.Bad("block_size", edge.Missing, "block_size is missing")
	case !byHash && r.has&fieldTokens == 0:
		return edge.Bad("token_ids", edge.Missing, "token_ids are missing")
	case byHash && r.has&fieldHashes == 0 && x.rfc:
		return edge.Bad("seq_hashes", edge.Missing, "seq_hashes are missing")
	case byHash && r.has&fieldHashes == 0:
		return edge.Bad("block_hashes", edge.Missing, "block_hashes are missing")
	case byHash && !x.rfc && salted:
		return edge.Bad("cache_salt", edge.Conflict, "block_hashes contain the salt already")
	}
	if byHash {
		r.lora, r.salt = nil, nil // the hashes contain them
	}
	return nil
}

// tokenDepth is what a rank holds of a prompt, in tokens, cumulative over
// tiers.
type tokenDepth struct {
	space event.Space
	shard.RankID
	depth [event.NumTiers]uint64
}

// appendIndexer answers /query and /query_by_hash.
func (q *finder) appendIndexer(v *view, x *indexerRequest, dst []byte) ([]byte, *edge.Problem) {
	all, spaces := q.ranks[:0], 0
	p := q.each(v.index, func(sp event.Space, _ int) {
		spaces++
		for i := range q.found.ranks {
			r := &q.found.ranks[i]
			if x.hasInstance && r.Worker != x.instance {
				continue
			}
			d := tokenDepth{space: sp, RankID: r.RankID}
			for t, n := range r.depth {
				d.depth[t] = uint64(n) * uint64(sp.BlockSize)
			}
			all = append(all, d)
		}
	})
	if q.ranks = all; p != nil {
		return dst, p
	}
	if spaces > 1 { // of one they are in order
		all = merged(all)
	}
	if x.rfc {
		return q.appendRFC(v, x, all, dst), nil
	}
	return q.appendDynamo(v, all, dst), nil
}

// merged sorts, stably as a rank of two spaces is of the first then, and joins what a rank holds of the prompt in spaces of
// different block sizes: the larger depth of each tier.
func merged(all []tokenDepth) []tokenDepth {
	slices.SortStableFunc(all, func(a, b tokenDepth) int { return a.RankID.Compare(b.RankID) })
	n := 0
	for i := range all {
		if n > 0 && all[n-1].RankID == all[i].RankID {
			for t, d := range all[i].depth {
				all[n-1].depth[t] = max(all[n-1].depth[t], d)
			}
			continue
		}
		all[n] = all[i]
		n++
	}
	return all[:n]
}

// eachWorker calls f for every worker with its ranks, what the routes call it, quoted,
// until f returns, and the largest depths of its ranks.
func (q *finder) eachWorker(v *view, all []tokenDepth, f func(name []byte, ranks []tokenDepth, best [event.NumTiers]uint64)) {
	for len(all) > 0 {
		n, best := 1, all[0].depth
		for ; n < len(all) && all[n].Worker == all[0].Worker; n++ {
			for t, d := range all[n].depth {
				best[t] = max(best[t], d)
			}
		}
		q.name = v.appendInstance(q.name[:0], all[0].space, all[0].Worker)
		f(q.name, all[:n], best)
		all = all[n:]
	}
}

// appendDynamo appends {"scores","frequencies","instances"}: scores are device
// tokens by instance and rank; the counts of instances are cumulative over
// gpu, cpu and disk.
func (q *finder) appendDynamo(v *view, all []tokenDepth, dst []byte) []byte {
	instances := q.text[:0] // which come after all scores
	dst = append(dst, `{"scores":{`...)
	scored := len(dst)
	q.eachWorker(v, all, func(name []byte, ranks []tokenDepth, best [event.NumTiers]uint64) {
		if len(instances) > 0 {
			instances = append(instances, ',')
		}
		instances = append(instances, name...)
		instances = appendUint(instances, `:{"longest_matched":`, best[event.External])
		instances = appendUint(instances, `,"gpu":`, best[event.Device])
		instances = append(instances, `,"dp":{`...)
		instances = appendRanks(instances, ranks, event.Device, 0)
		instances = appendUint(instances, `},"cpu":`, best[event.HostPinned])
		instances = appendUint(instances, `,"disk":`, best[event.External])
		instances = append(instances, '}')
		if best[event.Device] == 0 { // scores are of the device alone
			return
		}
		if len(dst) > scored {
			dst = append(dst, ',')
		}
		dst = append(append(dst, name...), `:{`...)
		dst = append(appendRanks(dst, ranks, event.Device, 1), '}')
	})
	q.text = instances
	dst = append(dst, `},"frequencies":[],"instances":{`...)
	return append(append(dst, instances...), "}}\n"...)
}

// appendRFC appends {"tenant":{"instance":{…}}}. GPU is how far the prefix
// goes on device; CPU and DISK are how far it goes with them, 0 where they add
// nothing, as in the RFC's example; DP is each rank's over all media.
func (q *finder) appendRFC(v *view, x *indexerRequest, all []tokenDepth, dst []byte) []byte {
	dst = append(dst, '{')
	dst = appendString(dst, string(x.tenant))
	dst = append(dst, `:{`...)
	begun := len(dst)
	q.eachWorker(v, all, func(name []byte, ranks []tokenDepth, best [event.NumTiers]uint64) {
		if len(dst) > begun {
			dst = append(dst, ',')
		}
		dst = append(dst, name...)
		dst = appendUint(dst, `:{"longest_matched":`, best[event.External])
		dst = appendUint(dst, `,"GPU":`, best[event.Device])
		dst = append(dst, `,"DP":{`...)
		dst = appendRanks(dst, ranks, event.External, 0)
		dst = appendUint(dst, `},"CPU":`, more(best[event.HostPinned], best[event.Device]))
		dst = appendUint(dst, `,"DISK":`, more(best[event.External], best[event.HostPinned]))
		dst = append(dst, '}')
	})
	return append(dst, "}}\n"...)
}

func more(with, without uint64) uint64 {
	if with > without {
		return with
	}
	return 0
}

// appendRanks appends the members of the ranks that hold at least so much.
func appendRanks(dst []byte, ranks []tokenDepth, t event.Tier, least uint64) []byte {
	comma := ""
	for i := range ranks {
		if ranks[i].depth[t] < least {
			continue
		}
		dst = appendUint(append(dst, comma...), `"`, uint64(ranks[i].DPRank))
		dst = appendUint(dst, `":`, ranks[i].depth[t])
		comma = ","
	}
	return dst
}
