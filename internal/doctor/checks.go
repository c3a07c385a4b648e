package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/registry"
)

// Limits beyond which something is said.
const (
	// maxClock is how far clocks may be apart; answers give theirs in whole seconds.
	maxClock = 5 * time.Second
	// maxLate is how long after an answer its blocks may come.
	maxLate = time.Second
)

func one(level Level, do, format string, args ...any) []finding {
	return []finding{{level, fmt.Sprintf(format, args...), do}}
}

func fine(format string, args ...any) []finding { return one(OK, "", format, args...) }

func registered(f *Facts) []finding {
	switch {
	case f.Absent != "":
		return one(Fault, "start it and its kvpublisher, or take its entry away with kvctl worker remove", "it is %s", f.Absent)
	case f.Conflict != "":
		return one(Fault, "give each its own --worker", "%s", f.Conflict)
	}
	return fine("as %s, events by %s", f.Worker.Role, f.Worker.Transport)
}

func engine(f *Facts) []finding {
	switch {
	case f.Worker.Endpoints.HTTP == "":
		return one(Warning, "give kvpublisher --engine-http", "no address of its engine is registered: it is indexed, and gets no requests")
	case f.Engine == nil:
		return nil
	case f.Engine.Error != "":
		return one(Fault, "is --engine-http right, and the engine up and open to routers?", "%s", f.Engine.Error)
	}
	return fine("it answers at %s", f.Worker.Endpoints.HTTP)
}

// answers reports whether the engine was asked and did.
func (f *Facts) answers() bool { return f.Engine != nil && f.Engine.Error == "" }

func model(f *Facts) []finding {
	if !f.answers() || f.Engine.Models == nil {
		return nil
	}
	if !slices.Contains(f.Engine.Models, f.Worker.Model) {
		return one(Fault, "give kvpublisher the engine's --model, or the engine --served-model-name",
			"the engine serves %s, registered is %q", some(f.Engine.Models), f.Worker.Model)
	}
	return fine("the engine serves it")
}

func tokens(f *Facts) []finding {
	switch {
	case !f.answers():
		return nil
	case f.Engine.TokensBy != "":
		return one(Unknown, "", "%s", f.Engine.TokensBy)
	case f.Engine.Tokens != "":
		return one(Fault, "give kvpublisher --tokenizer the files that the engine was started with, its --chat-template and its settings of templates, too",
			"%s", f.Engine.Tokens)
	}
	return fine("the engine makes the same as the registered files")
}

// some are the first of many names.
func some(names []string) string {
	const most = 8
	if n := len(names); n > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", n-most)
	}
	return strings.Join(names, ", ")
}

func loras(f *Facts) []finding {
	var missing []string
	if !f.answers() || f.Engine.Models == nil {
		return nil
	}
	for _, name := range f.Worker.Loras {
		if !slices.Contains(f.Engine.Models, name) {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	switch {
	case missing != nil:
		return one(Warning, "load them, or correct --lora-ids", "the engine does not serve the adapters %s", strings.Join(missing, ", "))
	case len(f.Worker.Loras) > 0:
		return fine("the engine serves all %d", len(f.Worker.Loras))
	}
	return nil
}

func hashScheme(f *Facts) []finding {
	switch {
	case f.Mismatch != "":
		return one(Fault, "publish with this release's kvpublisher, or register without hash_scheme", "%s", f.Mismatch)
	case f.Worker.HashScheme == "":
		return one(Unknown, "", "the registration does not state one")
	}
	return fine("%s", f.Worker.HashScheme)
}

func blockSize(f *Facts) []finding {
	const do = "give kvpublisher the engine's --block-size"
	for _, s := range f.seen() {
		if s.BlockSize != 0 && s.BlockSize != f.Worker.BlockSize {
			return one(Fault, do, "rank %d stores blocks of %d tokens, registered are %d", s.DPRank, s.BlockSize, f.Worker.BlockSize)
		}
	}
	switch {
	case !f.answers() || f.Engine.BlockSize == 0:
		return nil
	case f.Engine.BlockSize != int(f.Worker.BlockSize):
		return one(Fault, do, "the engine's blocks are of %d tokens, registered are %d", f.Engine.BlockSize, f.Worker.BlockSize)
	}
	return fine("%d", f.Worker.BlockSize)
}

func dpRanks(f *Facts) []finding {
	if !f.answers() || f.Engine.Ranks == 0 {
		return nil
	}
	if n := f.Engine.Registered; n != f.Engine.Ranks {
		return one(Fault, "give kvpublisher --dp-ranks of all that the engine has", "the engine has %d, registered are %d", f.Engine.Ranks, n)
	}
	return fine("%d", f.Engine.Ranks)
}

// seen is what was seen of each rank: what its publisher says, and what was listened to.
func (f *Facts) seen() []registry.Seen {
	list := slices.Clone(f.Worker.Seen)
	for i := range f.Ranks {
		r := &f.Ranks[i]
		if !slices.ContainsFunc(list, func(s registry.Seen) bool { return s.DPRank == r.DPRank }) && f.Worker.Transport == registry.ZMQ {
			list = append(list, r.Seen)
		}
	}
	return list
}

func events(f *Facts) []finding {
	for _, s := range f.seen() {
		if s.Error != "" {
			return one(Fault, "is the endpoint that of the engine's events, with the rank added to its port, and are they on? ("+enginesPage+")",
				"the events of rank %d are not read: %s", s.DPRank, s.Error)
		}
		if s.Waits != "" {
			return one(Fault, "has the NATS server room on its disk (--nats-max-store, --stream-max-bytes), and may this user write there?",
				"the events of rank %d are not published: %s", s.DPRank, s.Waits)
		}
	}
	if f.Worker.Transport == registry.NoEvents && f.Engine != nil {
		return one(Warning, "give it a kvpublisher", "it publishes none: what it holds is guessed")
	}
	heard := 0
	for i := range f.Ranks {
		r := &f.Ranks[i]
		switch {
		case r.Reading != "":
			return one(Unknown, "", "rank %d: %s", r.DPRank, r.Reading)
		case r.Error != "" || r.Blocks == 0:
			continue
		case r.Heard == 0 && r.Of != "":
			return one(Fault, "give each kvpublisher the --engine of its own engine", "the events of rank %d are those of the engine of %s", r.DPRank, r.Of)
		case r.Heard == 0 && r.By != "":
			return one(Fault, "are --engine-http and --engine of both those of their own engines?", "the prompt for rank %d arrived as that of %s", r.DPRank, r.By)
		case r.OtherRank >= 0:
			return one(Fault, "compare --dp-ranks with the engine's", "a prompt for rank %d was stored by rank %d", r.DPRank, r.OtherRank)
		case r.Heard == 0 && r.Others == 0:
			return one(Fault, "are its events on, and its prefix cache, are --engine-http and --engine of one engine, and is --engine-topic its events' topic? ("+enginesPage+")",
				"rank %d computed %d blocks, and nothing arrived of them", r.DPRank, r.Blocks)
		}
		heard++
	}
	if heard == 0 {
		return nil
	}
	return fine("of %d of %d ranks", heard, len(f.Worker.Ranks))
}

const enginesPage = "docs/engines.md"

func lateness(f *Facts) []finding {
	late, rank := time.Duration(0), uint32(0)
	heard := false
	for i := range f.Ranks {
		if r := &f.Ranks[i]; r.Heard > 0 {
			if heard = true; r.Late > late {
				late, rank = r.Late, r.DPRank
			}
		}
	}
	switch {
	case !heard:
		return nil
	case late > maxLate:
		return one(Warning, "look at the processor of engine and kvpublisher, at NATS and at what is between them", "the blocks of rank %d came %v after its answer",
			rank, late.Round(time.Millisecond))
	}
	return fine("%v after the answer at most", late.Round(time.Millisecond))
}

func matches(f *Facts) []finding {
	whole := 0
	for i := range f.Ranks {
		switch r := &f.Ranks[i]; {
		case r.Blocks == 0 || r.Heard == 0 && (r.Others == 0 || r.Of != "" || r.By != ""):
		case r.Heard == 0 && f.salted(r.DPRank):
			return one(Fault, "take away what salts prompts (cache_salt) in front of the engine, or have requests say the same salt",
				"rank %d salts the prompt, which names no salt: none of its %d blocks matches", r.DPRank, r.Blocks)
		case r.Heard == 0:
			return one(Fault, "compare its kvpublisher's release and settings (--eagle, hash scheme) with the others'",
				"rank %d stored %d blocks, and none with the hashes of the prompt's %d", r.DPRank, r.Others, r.Blocks)
		case r.Heard < r.Blocks:
			return one(Warning, "look at what is left out, and at the log of its kvpublisher", "of %d blocks of rank %d %d arrived with the prompt's hashes",
				r.Blocks, r.DPRank, r.Heard)
		default:
			whole += r.Heard
		}
	}
	if whole == 0 {
		return nil
	}
	return fine("%d of %[1]d blocks", whole)
}

func (f *Facts) salted(rank uint32) bool {
	return slices.ContainsFunc(f.seen(), func(s registry.Seen) bool { return s.DPRank == rank && s.Salted })
}

// whyLeft says what to do about reasons of blocks that are left out; of those that are not
// here nothing is to be done.
func whyLeft() map[string]string {
	return map[string]string{
		"unnamed_lora":    "name the adapters with --lora-ids",
		"lookahead":       "give kvpublisher --eagle if the engine speculates, and not if it does not",
		"medium":          "take a newer release of kvatlas",
		"extra_keys":      "take a newer release of kvatlas",
		"unknown_event":   "take a newer release of kvatlas",
		"malformed_event": "take a newer release of kvatlas",
	}
}

func leftOut(f *Facts) []finding {
	for _, s := range f.seen() {
		for _, why := range s.LeftOut {
			if do := whyLeft()[why]; do != "" {
				return one(Warning, do, "of rank %d something was left out: %s", s.DPRank, why)
			}
		}
	}
	return nil
}

func engineHashes(f *Facts) []finding {
	if f.Pool == nil || f.Worker.EngineScheme == "" {
		return nil
	}
	of := f.Pool.first[f.Worker.EngineScheme]
	if len(of) < 2 {
		if len(of) == 1 {
			return fine("the same as all of %q", f.Worker.EngineScheme)
		}
		return nil
	}
	for i := range f.Ranks {
		if r := &f.Ranks[i]; r.First != 0 && !agreed(of, r.First) {
			return one(Fault, "start engines with one hash seed (PYTHONHASHSEED) and algorithm, or register them without --engine-scheme",
				"rank %d calls a block otherwise than others of the engine scheme %q", r.DPRank, f.Worker.EngineScheme)
		}
	}
	return nil
}

// agreed reports whether more say it than anything else: of equally many nobody knows who is right.
func agreed[K comparable](counts map[K]int, said K) bool {
	for other, n := range counts {
		if other != said && n >= counts[said] {
			return false
		}
	}
	return true
}

func groups(f *Facts) []finding {
	list := f.Worker.CacheGroups
	for _, g := range list {
		if f.Pool != nil && !agreed(f.Pool.groups[numbered{f.Worker.BlockSize, g.Number}], g) {
			return one(Warning, "compare its engine's release and settings, and --cache-groups, with those of the model's other workers",
				"its cache group %d is %s of blocks of %d tokens, span %d, and others' is not", g.Number, g.Kind, g.BlockSize, g.Span)
		}
	}
	switch {
	case slices.ContainsFunc(list, func(g event.CacheGroup) bool { return g.Kind == event.Untold }), f.Worker.Hybrid && len(list) == 0:
		return one(Unknown, "", "its model has caches beside full attention of which not enough is known: depths are estimates")
	case len(list) > 0:
		return fine("%d", len(list))
	}
	return nil
}

func replay(f *Facts) []finding {
	looked := false
	for _, s := range f.seen() {
		switch {
		case s.Replay == registry.ReplayNone:
			return one(Warning, "give the engine a replay_endpoint, and kvpublisher --engine-replay", "none is set for rank %d: each lost message begins its stream anew", s.DPRank)
		case s.Replay == registry.ReplayUnreachable:
			return one(Fault, "is --engine-replay the engine's replay_endpoint?", "that of rank %d does not answer", s.DPRank)
		case s.Replay == registry.SnapshotUnreachable:
			return one(Fault, "is --engine-snapshot the engine's snapshot_endpoint?", "that of rank %d gives no snapshot that can be used", s.DPRank)
		case slices.Contains(s.Lost, "retention"):
			return one(Warning, "raise buffer_steps of the engine's --kv-events-config", "that of rank %d did not reach back to what was missing", s.DPRank)
		}
		looked = true
	}
	if !looked || f.Worker.Transport == registry.NoEvents {
		return nil
	}
	return fine("nothing was missing of it")
}

func tiers(f *Facts) []finding {
	seen, some := map[string]bool{}, false
	for _, s := range f.seen() {
		for _, t := range s.Tiers {
			seen[t], some = true, true
		}
	}
	if !some {
		return nil
	}
	var never []string
	for _, t := range f.Worker.Tiers {
		if !seen[t] {
			never = append(never, t)
		}
	}
	if len(never) > 0 {
		return one(Warning, "are events of offloaded blocks on? Else take it out of --tiers; before anything was offloaded this is as it should be",
			"nothing is seen of %s", strings.Join(never, ", "))
	}
	return fine("%s", strings.Join(slices.Sorted(maps.Keys(seen)), ", "))
}

func cached(f *Facts) []finding {
	some := false
	for i := range f.Ranks {
		switch r := &f.Ranks[i]; {
		case r.Error != "":
			return one(Fault, "ask the engine itself for a completion", "rank %d: %s", r.DPRank, r.Error)
		case r.Blocks == 0:
		case r.Before >= (r.Blocks-1)*int(f.Worker.BlockSize):
			return one(Fault, "what makes its answers? Routers correct what they expect by what engines report",
				"rank %d said that %d tokens of a prompt that nobody had sent before were cached", r.DPRank, r.Before)
		case r.Cached < 0:
			return one(Warning, "start vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report",
				"rank %d does not say what was cached: predictions are not compared", r.DPRank)
		case r.Cached < (r.Blocks-1)*int(f.Worker.BlockSize):
			return one(Fault, "is its prefix cache on? With data-parallel ranks, does the engine take X-Data-Parallel-Rank?",
				"rank %d found %d of %d tokens when the prompt came once more", r.DPRank, r.Cached, r.Blocks*int(f.Worker.BlockSize))
		default:
			some = true
		}
	}
	if !some {
		return nil
	}
	return fine("a prompt that comes again is found, and reported")
}

func clock(f *Facts) []finding {
	if !f.answers() || !f.Engine.ClockSaid {
		return nil
	}
	if f.Engine.Clock.Abs() > maxClock {
		return one(Warning, "run NTP there: lateness of events, and why a prediction failed, go by publishers' clocks", "its clock is %v off", f.Engine.Clock.Round(time.Second))
	}
	return fine("within %v of ours", maxClock)
}

func connector(f *Facts) []finding {
	w := &f.Worker
	if f.Pool == nil || w.Role == registry.Aggregated {
		return nil
	}
	const do = "start prefill and decode engines of a model with one connector, and give kvpublisher its --kv-transfer"
	others, of := f.Pool.prefill, "prefill"
	if w.Role == registry.Prefill {
		others, of = f.Pool.decode, "decode"
	}
	fit, all, misfit, other := 0, 0, "", registry.KVTransfer("")
	for s, n := range others {
		all += n
		why := ""
		switch {
		case s.block != w.BlockSize:
			why = fmt.Sprintf("its blocks are of %d tokens, those of %s workers of its model of %d", w.BlockSize, of, s.block)
		case !s.way.Reaches(w.KVTransfer):
			why = fmt.Sprintf("it hands prompts over as %s, %s workers of its model as %s", w.KVTransfer, of, s.way)
		default:
			fit += n
		}
		if s.way != registry.TransferVLLM { // which routers take it for
			other = max(other, s.way)
		}
		misfit = max(misfit, why) // the same one each time
	}
	switch kind := w.KVTransfer.Engine(); {
	case all == 0 && w.Role == registry.Prefill:
		return one(Fault, "start decode workers", "no decode worker of its model is there")
	case all == 0:
		return one(Warning, "start prefill workers, or register it without --role", "no prefill worker of its model is there: it computes prompts itself")
	case f.answers() && kind != "" && f.Engine.Kind != kind && slices.Contains([]string{"vllm", "sglang", "tensorrt_llm"}, f.Engine.Kind):
		return one(Fault, "give kvpublisher the --kv-transfer of its engine's connector", "its engine is %s, which does not hand prompts over as %s", f.Engine.Kind, w.KVTransfer)
	case fit == 0:
		return one(Fault, do, "%s: it is paired with none", misfit)
	case fit < all:
		return one(Warning, do, "%s: it is paired with %d of %d", misfit, fit, all)
	case w.Role == registry.Prefill && slices.ContainsFunc(w.Ranks, func(r uint32) bool { return len(f.Pool.meet[meeting(w, r)]) > 1 }):
		return one(Warning, "give each kvpublisher its own engine's --bootstrap", "its bootstrap address %s is that of another engine, too", w.Endpoints.Bootstrap)
	case w.KVTransfer == "" && w.Role == registry.Prefill && other != "":
		return one(Warning, do, "its registration does not say how it hands prompts over, and decode workers of its model take them as %s: it goes by routers' --kv-transfer", other)
	case w.KVTransfer == "":
		return one(Unknown, "", "its registration does not say how it hands prompts over (kv_transfer): routers go by their --kv-transfer")
	}
	return fine("%s", w.KVTransfer)
}

func handOver(f *Facts) []finding {
	p := f.Pair
	switch {
	case p == nil:
		return nil
	case p.Error != "" && !p.Met:
		return one(Fault, "is --bootstrap where a prefill engine's bootstrap server listens (VLLM_MOONCAKE_BOOTSTRAP_PORT, --disaggregation-bootstrap-port), "+
			"and is the engine started as one that computes prompts (kv_producer, prefill)?", "with %s: %s", p.Other, p.Error)
	case p.Error != "":
		return one(Fault, "can they reach each other at the connector's ports?", "with %s: %s", p.Other, p.Error)
	case p.Cached < 0:
		return one(Unknown, "", "with %s: what came with the prompt is not said", p.Other)
	case p.Cached < p.Tokens:
		return one(Fault, "are both started with the same connector, block size and tensor parallelism, and can they reach each other?",
			"with %s: of %d tokens %d were there, so decode computes what prefill has computed", p.Other, p.Tokens, p.Cached)
	}
	return fine("with %s: %d tokens came with the prompt", p.Other, p.Tokens)
}
