package doctor

import (
	"fmt"
	"net"
	"strconv"
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
	// Deaf are addresses at which others would fetch what it has, by where they are given, and why nobody answers there.
	Deaf map[Place]string
}

// Place is an address of a worker beside those of its engine's requests and events.
type Place struct{ What, Pool, At string } // Pool is the name of the pool whose it is; "" for none

// What is at a Place.
const (
	PeerPlace   = "peer"   // other engines fetch prefixes
	EventsPlace = "events" // a pool's stream
	KeysPlace   = "keys"   // what a pool has
)

// Places returns all of the worker's.
func Places(w *registry.Worker) (list []Place) {
	if host, port, err := net.SplitHostPort(w.Endpoints.Peer); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			for _, rank := range w.Ranks { // those after rank 0 are at the next ports
				list = append(list, Place{PeerPlace, "", net.JoinHostPort(host, strconv.FormatUint(n+uint64(rank), 10))})
			}
		}
	}
	for i := range w.Pools {
		if from := w.Pools[i].Source; from != nil {
			list = append(list, Place{EventsPlace, w.Pools[i].Name, from.Events}, Place{KeysPlace, w.Pools[i].Name, from.Keys})
		}
	}
	return list
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
	Before    int           // tokens that it said were cached when it got the prompt first
	Cached    int           // and when it got it once more; below 0: it did not say
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
	// meet are the bootstrap addresses of prefill workers' ranks, with the engines that have each: engines of one rank
	// each may have one server.
	meet map[string]map[string]bool
	// peers are the addresses at which engines fetch from workers, likewise.
	peers map[string]map[string]bool
	// stores are what workers say of pools of a name, and sources of their streams, those that do: how many say each.
	stores, sources map[string]map[string]int
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
		groups: map[numbered]map[event.CacheGroup]int{}, peers: map[string]map[string]bool{}, stores: map[string]map[string]int{}, sources: map[string]map[string]int{}}
}

// count notes that something of the name is said.
func count[K, V comparable](of map[K]map[V]int, name K, said V) {
	if of[name] == nil {
		of[name] = map[V]int{}
	}
	of[name][said]++
}

// meeting is a rank at its worker's bootstrap address; "" if none is registered.
func meeting(w *registry.Worker, rank uint32) string {
	if w.Endpoints.Bootstrap == "" {
		return ""
	}
	return fmt.Sprintf("%s#%d", w.Endpoints.Bootstrap, rank)
}

// noteAddress notes that an engine has an address.
func noteAddress(list map[string]map[string]bool, at, engine string) {
	if at == "" || engine == "" {
		return
	}
	if list[at] == nil {
		list[at] = map[string]bool{}
	}
	list[at][engine] = true
}

// said is what a worker says of a pool that all workers must say alike, and source of its stream, where it does.
func said(p *event.Pool) string { return fmt.Sprintf("chunk %d, own_names %t", p.Chunk, p.OwnNames) }

func source(s *event.PoolSource) string {
	return fmt.Sprintf("events %s, keys %s, prefix %s, parts %d, groups %v", s.Events, s.Keys, s.Prefix, s.Parts, s.Groups)
}

// Add puts a worker in; one that is not there must not be.
func (p *Pool) Add(w *registry.Worker, ranks []Rank) {
	of := p.decode // also who is neither goes on with prompts
	if w.Role == registry.Prefill {
		of = p.prefill
		for _, rank := range w.Ranks {
			noteAddress(p.meet, meeting(w, rank), w.Endpoints.HTTP)
		}
	}
	for _, at := range Places(w) {
		if at.What == PeerPlace {
			noteAddress(p.peers, at.At, w.Endpoints.HTTP)
		}
	}
	for i := range w.Pools {
		count(p.stores, w.Pools[i].Name, said(&w.Pools[i]))
		if from := w.Pools[i].Source; from != nil {
			count(p.sources, w.Pools[i].Name, source(from))
		}
	}
	of[side{w.KVTransfer, w.BlockSize}]++
	for _, c := range w.CacheGroups {
		count(p.groups, numbered{w.BlockSize, c.Number}, c)
	}
	for _, r := range ranks {
		if w.EngineScheme != "" && r.First != 0 {
			count(p.first, w.EngineScheme, r.First)
		}
	}
}
