package doctor

import (
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/registry"
)

// Facts is what was found of one worker.
type Facts struct {
	Worker   registry.Worker
	Absent   string // why it is not there: its state in the registry; "" if it is
	Mismatch string // of its hash scheme, as the registry says it
	Conflict string // of its registration, likewise
	Pool     *Pool  // its model's workers; nil: not known

	Engine *Engine // nil: it was not asked
	Ranks  []Rank  // whose events were listened to; none: of none
	Pair   *Pair   // of a prefill and a decode worker; nil: not tried
}

// Engine is what an engine said over HTTP.
type Engine struct {
	Error     string // why it said nothing; then all else is empty
	Kind      string // vllm, sglang, …, as it owns its models; "" if it does not say one
	Models    []string
	BlockSize int // 0: it does not say
	Ranks     int // 0: it does not say
	// Registered is how many ranks are, of all workers that have its address.
	Registered int
	Clock      time.Duration // how far ahead of ours its clock is
	ClockSaid  bool
	Tokens     string // how its tokens differ from those of the registered files; "" if they are the same
	TokensBy   string // why that was not looked at; "" if it was
}

// Rank is what became of one rank's prompt.
type Rank struct {
	DPRank    uint32
	Error     string        // why there was no prompt, or the engine's answer was an error
	Reading   string        // why its events could not be listened to; "" if they were
	Seen      registry.Seen // of its events, where no publisher says it
	Blocks    int           // complete ones of the prompt
	Heard     int           // of those, stored with the local hashes that requests have
	Others    int           // blocks that it stored meanwhile under other local hashes
	Late      time.Duration // the last of those heard, after the engine's answer
	First     uint64        // engine hash of the first block; 0: not heard
	Cached    int           // tokens that it said were cached when it got the prompt once more; below 0: it did not say
	OtherRank int           // the rank that stored the prompt in its place; below 0: none
	// Of is another worker, by name, whose prompt arrived as if this rank had stored it, and By one of whom this
	// rank's arrived so; "": none is known.
	Of, By string
}

// Pair is what became of a prompt that a prefill worker computed for a decode worker.
type Pair struct {
	Other  string // the other one, by name
	Error  string // what failed
	Met    bool   // it failed behind the prefill worker's bootstrap address, if there is one
	Tokens int    // that were to come with the prompt
	Cached int    // that the decode worker said were there; below 0: it did not say
}

// Level says how bad a finding is.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Unknown Level = "unknown" // it was not looked at
	Warning Level = "warning" // it works, and not as well as it could
	Fault   Level = "fault"   // it does not work
)

// Finding is what one check found of one worker.
type Finding struct {
	Worker uint64 `json:"worker_id,string"`
	Name   string `json:"name,omitempty"`
	Model  string `json:"model"`
	Check  string `json:"check"`
	Level  Level  `json:"level"`
	Found  string `json:"found"`
	Do     string `json:"do,omitempty"`
}

// Pool is what a model's workers are together, as far as a worker of it is judged by
// the others.
type Pool struct {
	// How many compute prompts for others, and how many go on with prompts.
	prefill, decode map[side]int
	// meet are the bootstrap addresses of prefill workers, with the engines that have each.
	meet map[string]map[string]bool
	// first are engine hashes of one prompt's first block, by engine scheme: how many
	// ranks have each.
	first map[string]map[uint64]int
	// groups are what workers say of the cache group of a number, where blocks have a size: how many say each.
	groups map[numbered]map[event.CacheGroup]int
}

// numbered names a cache group.
type numbered struct {
	block uint32
	group uint8
}

// side is what a worker says of how it hands prompts over, or takes them.
type side struct {
	way   registry.KVTransfer
	block uint32
}

// NewPool returns a pool without workers.
func NewPool() *Pool {
	return &Pool{prefill: map[side]int{}, decode: map[side]int{}, meet: map[string]map[string]bool{}, first: map[string]map[uint64]int{},
		groups: map[numbered]map[event.CacheGroup]int{}}
}

// Add puts a worker in; one that is not there must not be.
func (p *Pool) Add(w *registry.Worker, ranks []Rank) {
	of := p.decode // also who is neither goes on with prompts
	if w.Role == registry.Prefill {
		of = p.prefill
		if at := w.Endpoints.Bootstrap; at != "" && w.Endpoints.HTTP != "" {
			if p.meet[at] == nil {
				p.meet[at] = map[string]bool{}
			}
			p.meet[at][w.Endpoints.HTTP] = true
		}
	}
	of[side{w.KVTransfer, w.BlockSize}]++
	for _, c := range w.CacheGroups {
		k := numbered{w.BlockSize, c.Number}
		if p.groups[k] == nil {
			p.groups[k] = map[event.CacheGroup]int{}
		}
		p.groups[k][c]++
	}
	for _, r := range ranks {
		if w.EngineScheme == "" || r.First == 0 {
			continue
		}
		if p.first[w.EngineScheme] == nil {
			p.first[w.EngineScheme] = map[uint64]int{}
		}
		p.first[w.EngineScheme][r.First]++
	}
}
