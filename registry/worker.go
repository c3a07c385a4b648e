package registry

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/modelfiles"
)

// Role says which phase of a request a worker serves.
type Role string

// The roles. The empty one counts as Aggregated.
const (
	Aggregated Role = "aggregated"
	Prefill    Role = "prefill"
	Decode     Role = "decode"
)

// Transport says how a worker's events travel.
type Transport string

// The transports.
const (
	JetStream Transport = "jetstream" // through the space's stream
	Core      Transport = "core"      // NATS without a stream; the worker keeps a local index
	ZMQ       Transport = "zmq"       // read from the engine's own socket
	NoEvents  Transport = "none"      // nothing: approximate mode
)

// KVTransfer says how the KV entries of a prompt get from a prefill worker to a
// decode worker.
type KVTransfer string

// The ways.
const (
	// TransferVLLM: the prefill worker is asked first, for one token; what it
	// answers as kv_transfer_params goes to the decode worker.
	TransferVLLM KVTransfer = "vllm"
	// TransferSGLang: both get the request at once, with the prefill worker's
	// bootstrap address and a number to meet under.
	TransferSGLang KVTransfer = "sglang"
	// TransferMooncake: vLLM's MooncakeConnector. Both get the request at once, with one
	// name of the transfer; the decode worker also where the prefill worker's engines are
	// asked for (Endpoints.Bootstrap), and which of them it is.
	TransferMooncake KVTransfer = "mooncake"
)

// Worker describes one worker of one index space, as registered.
type Worker struct {
	ID        uint64 `json:"worker_id,string"`
	Name      string `json:"name,omitempty"` // what the id was made from, if it is no number
	Model     string `json:"model"`
	BlockSize uint32 `json:"block_size"` // tokens
	Group     string `json:"group,omitempty"`
	// HashScheme says how the local hashes in its events are made (see
	// Scheme); empty: not stated.
	HashScheme string `json:"hash_scheme,omitempty"`
	// Hybrid says that its model has caches besides full attention (sliding windows, states).
	// Where CacheGroups do not say what they are, what is held of a prompt is the most that
	// can be reused.
	Hybrid bool `json:"hybrid,omitempty"`
	// CacheGroups are all the caches of its model, if they are known; group 0 is full
	// attention. What its stream tells of them is added to what stands here.
	CacheGroups []event.CacheGroup `json:"cache_groups,omitempty"`
	// EngineScheme names the function of its engine hashes if equal content
	// has equal ones on every worker that names the same; empty: it has not.
	EngineScheme string `json:"engine_scheme,omitempty"`
	// Ranks are its data-parallel ranks, sorted; none means rank 0.
	Ranks []uint32 `json:"dp_ranks,omitempty"`
	Tiers []string `json:"tiers,omitempty"` // as event.Tier writes them
	// TotalBlocks is the device cache of one rank, in blocks, and
	// MaxBatchedTokens the most tokens in a step of its engine; 0: unknown.
	TotalBlocks      uint64 `json:"total_blocks,omitempty"`
	MaxBatchedTokens uint64 `json:"max_batched_tokens,omitempty"`
	Role             Role   `json:"role,omitempty"`
	// KVTransfer says how a prompt that a prefill worker has computed gets to a
	// decode worker; empty: not stated.
	KVTransfer KVTransfer `json:"kv_transfer,omitempty"`
	CPU        bool       `json:"cpu,omitempty"` // it has no accelerator
	// Credential names what routers show its engine, in their own files: never the
	// secret itself.
	Credential string    `json:"credential,omitempty"`
	Transport  Transport `json:"transport"`
	Endpoints  Endpoints `json:"endpoints,omitzero"`
	// Tokenizer names the files by which its prompts become tokens, in the namespace's
	// bucket of models' files; none: not stated.
	Tokenizer []modelfiles.File `json:"tokenizer,omitempty"`
	// Incarnation names the run of the engine process; 0: unknown.
	Incarnation uint64 `json:"incarnation,string,omitempty"`
	// Lora and Salt are what HTTP clients register with: those of the events
	// from its ZMQ endpoints that name none.
	Lora string `json:"lora_name,omitempty"`
	Salt string `json:"additional_salt,omitempty"`
	// Loras are the names of its engine's LoRA adapters by their number, for events
	// that give no more than that.
	Loras map[int64]string `json:"lora_ids,omitempty"`
	// Pools are the stores that it shares with other workers: what its events say of their
	// tiers is said of the pool.
	Pools []event.Pool `json:"pools,omitempty"`
	// Seen is what its publisher has seen of its engine; none: nothing, or it does not say.
	Seen []Seen `json:"seen,omitempty"`
}

// Endpoints are a worker's addresses.
type Endpoints struct {
	HTTP string `json:"http,omitempty"` // of the engine
	// Bootstrap is where decode workers meet a prefill worker of SGLang, or one with vLLM's
	// MooncakeConnector, as host:port; empty: port 8998 of the engine's host.
	Bootstrap string `json:"bootstrap,omitempty"`
	// Peer is where other engines fetch prefixes that this one has, as host:port of its rank 0,
	// each further rank at the next port; and this one fetches from others that have it. It is
	// the side channel of vLLM's P2P tier (0.33: VLLM_P2P_SIDE_CHANNEL_HOST and _PORT). Empty: it does neither.
	Peer   string            `json:"peer,omitempty"`
	Events map[uint32]string `json:"events,omitempty"` // ZMQ publisher, by rank
	Replay map[uint32]string `json:"replay,omitempty"` // ZMQ replay socket, by rank
	// Snapshot is the ZMQ socket that gives all that the engine holds, by rank.
	Snapshot map[uint32]string `json:"snapshot,omitempty"`
}

// notOfHost reports whether a character is in no host's name or address. What routers pass on of
// them goes into headers and bodies, and engines make URLs of it.
func notOfHost(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"'/\@?#<>`, r) }

// checkMeeting requires a host and a port of where engines meet, if there is an address.
func (e *Endpoints) checkMeeting() error {
	for _, a := range [...]struct{ name, at string }{{"bootstrap", e.Bootstrap}, {"peer", e.Peer}} {
		if a.at == "" {
			continue
		}
		host, port, err := net.SplitHostPort(a.at)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || host == "" || n == 0 || strings.ContainsFunc(host, notOfHost) {
			return fmt.Errorf("%s address %q: give host:port", a.name, a.at)
		}
	}
	return nil
}

// Key names a worker within a namespace.
type Key struct {
	Space  event.Space
	Worker uint64
}

func (k Key) compare(o Key) int {
	return cmp.Or(
		strings.Compare(k.Space.Model, o.Space.Model),
		cmp.Compare(k.Space.BlockSize, o.Space.BlockSize),
		strings.Compare(k.Space.Group, o.Space.Group),
		cmp.Compare(k.Worker, o.Worker))
}

// Space returns the worker's index space.
func (w Worker) Space() event.Space {
	return event.Space{Model: w.Model, BlockSize: w.BlockSize, Group: w.Group}
}

// Key returns what names the worker.
func (w Worker) Key() Key { return Key{w.Space(), w.ID} }

// Bounds on what a registration may say.
const (
	maxText  = 1024
	maxRanks = 1024
	maxLoras = 4096
)

// Check returns what a registry would refuse of the worker, whose events come as Transport says.
func (w Worker) Check() error { return w.normalise() }

// normalise checks w and brings it into the form in which it is stored.
func (w *Worker) normalise() error {
	if w.Role == "" {
		w.Role = Aggregated
	}
	switch w.Role {
	case Aggregated, Prefill, Decode:
	default:
		return fmt.Errorf("role %q: give aggregated, prefill or decode", w.Role)
	}
	switch w.KVTransfer {
	case "", TransferVLLM, TransferSGLang, TransferMooncake:
	default:
		return fmt.Errorf("kv_transfer %q: give vllm, sglang or mooncake", w.KVTransfer)
	}
	if err := w.Endpoints.checkMeeting(); err != nil {
		return err
	}
	switch w.Transport {
	case JetStream, Core, ZMQ, NoEvents:
	default:
		return fmt.Errorf("transport %q: give jetstream, core, zmq or none", w.Transport)
	}
	if w.Model == "" {
		return errors.New("no model name")
	}
	if err := blockhash.CheckBlockSize(int(w.BlockSize)); err != nil {
		return err
	}
	if err := modelfiles.Check(w.Tokenizer); err != nil {
		return err
	}
	if err := cmp.Or(w.checkTexts(), w.checkSeen(), event.CheckCacheGroups(w.CacheGroups), event.CheckPools(w.Pools)); err != nil {
		return err
	}
	if len(w.Ranks) == 0 {
		w.Ranks = []uint32{0}
	}
	w.Ranks = slices.Clone(w.Ranks)
	slices.Sort(w.Ranks)
	w.Ranks = slices.Compact(w.Ranks)
	if len(w.Ranks) > maxRanks {
		return fmt.Errorf("%d ranks, at most %d", len(w.Ranks), maxRanks)
	}
	if w.Ranks[len(w.Ranks)-1] == event.PoolRank {
		return fmt.Errorf("rank %d is none of a worker's", event.PoolRank)
	}
	of := make(map[string]uint32) // whose sockets are where: one that is two ranks', or two kinds, is neither
	for _, m := range []map[uint32]string{w.Endpoints.Events, w.Endpoints.Replay, w.Endpoints.Snapshot} {
		for _, rank := range slices.Sorted(maps.Keys(m)) {
			if _, ok := slices.BinarySearch(w.Ranks, rank); !ok {
				return fmt.Errorf("an endpoint of rank %d, which is not among the ranks", rank)
			}
			at := m[rank]
			if other, taken := of[at]; taken && at != "" {
				return fmt.Errorf("%.200q is given for two sockets, of rank %d and of rank %d: give each its own address", at, other, rank)
			}
			of[at] = rank
		}
	}
	w.Tiers = slices.Clone(w.Tiers)
	for i, name := range w.Tiers {
		tier, ok := event.ParseTier([]byte(name))
		if !ok {
			return fmt.Errorf("tier %q is not known", name)
		}
		w.Tiers[i] = tier.String()
	}
	return nil
}

func (w *Worker) checkTexts() error {
	texts := []string{w.Name, w.Model, w.Group, w.HashScheme, w.EngineScheme, w.Lora, w.Salt, w.Credential, w.Endpoints.HTTP, w.Endpoints.Bootstrap, w.Endpoints.Peer}
	texts = slices.AppendSeq(texts, maps.Values(w.Endpoints.Events))
	texts = slices.AppendSeq(texts, maps.Values(w.Endpoints.Replay))
	texts = slices.AppendSeq(texts, maps.Values(w.Endpoints.Snapshot))
	texts = slices.AppendSeq(texts, maps.Values(w.Loras))
	for i := range w.Pools {
		texts = append(texts, w.Pools[i].Name)
	}
	for i := range w.Seen {
		texts = append(texts, w.Seen[i].texts()...)
	}
	if len(w.Loras) > maxLoras {
		return fmt.Errorf("%d names of LoRA adapters, at most %d", len(w.Loras), maxLoras)
	}
	for _, t := range texts {
		if len(t) > maxText || !utf8.ValidString(t) {
			return fmt.Errorf("a text is longer than %d bytes or not UTF-8", maxText)
		}
	}
	return nil
}

// equal reports whether two registrations say the same. Both are normalised.
func (w *Worker) equal(o *Worker) bool { return reflect.DeepEqual(w, o) }

// Scheme names how kvatlas makes the local hashes of a block size: function,
// seed, block size and what a salt or LoRA name does. Events made otherwise
// would never match.
func Scheme(blockSize uint32) string {
	return fmt.Sprintf("xxh3-64;seed=%d;block=%d;salt=added-to-seed", blockhash.Seed("", ""), blockSize)
}

// EagleScheme names how the local hashes of an engine with EAGLE or MTP are made, which
// cover the token after each block (blockhash.Options.Eagle). Requests are looked up with
// both where a worker of the space says this.
func EagleScheme(blockSize uint32) string {
	return fmt.Sprintf("%s;window=%d", Scheme(blockSize), blockSize+1)
}

// Eagle reports whether the worker says that its hashes are made as EagleScheme has it.
func (w *Worker) Eagle() bool { return w.HashScheme == EagleScheme(w.BlockSize) }

// mismatch says how the worker's hashes differ from this index's; "" if they
// do not, or if the worker does not say how it makes them.
func (w *Worker) mismatch() string {
	want := Scheme(w.BlockSize)
	if w.HashScheme == "" || w.HashScheme == want || w.Eagle() {
		return ""
	}
	return fmt.Sprintf("its hashes are made as %q, this index looks up %q: it will never match", w.HashScheme, want)
}
