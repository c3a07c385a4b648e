package sidecar

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/program/admin"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// Config holds the settings of a Sidecar.
type Config struct {
	Broker    broker.Config
	Stream    publish.StreamConfig
	Namespace string
	Transport string

	Worker    string // a number, or a name
	Model     string
	BlockSize int
	Group     string
	Ranks     []string // numbers and ranges

	Engine     string // ZMQ endpoint of rank 0; empty: none
	Replay     string
	Snapshot   string
	Topic      string
	ExactTopic bool
	Eagle      bool
	Hybrid     bool
	// CacheGroups are those of the model, as JSON of []event.CacheGroup.
	CacheGroups string
	// Pools are those that the engine reads from, as JSON of []event.Pool.
	Pools   string
	Loras   []string // number=name
	Socket  string   // Unix socket for engines that speak no ZMQ; empty: none
	MaxLine int64    // bytes of a line on it

	StateDir  string // "none": nothing is kept
	SaveEvery time.Duration

	StreamWait time.Duration

	Register     bool
	Lease        time.Duration
	Role         string
	TotalBlocks  int
	Tiers        []string
	EngineScheme string
	EngineHTTP   string
	Tokenizer    string // directory; empty: none
	ChatKwargs   string // JSON
	KVTransfer   string
	Credential   string // name
	Bootstrap    string
	Peer         string
	MaxBatched   int
	CPU          bool

	Admin   admin.Settings
	Access  secure.Settings
	Log     obs.LogConfig
	Service proc.ServiceConfig

	settings *conf.Set
}

// Declare adds the settings to the set.
func (c *Config) Declare(set *conf.Set) {
	c.settings = set
	set.String(&c.Service.AddressFile, "address-file", "", `File to write the HTTP address to (host:port and a line end) once the
		server listens, for scripts that let it choose the port. It is the admin port's. Removed at the end.`)
	set.Duration(&c.Service.StopTimeout, "stop-timeout", 10*time.Second, `Time for the end, after the drain delay. What is published is brought
		to NATS in it, and the state kept; there is no drain delay here.`, conf.Between(0, time.Hour))
	set.Group("Worker")
	set.String(&c.Worker, "worker", "", "The worker's id: a number, or a name, from which a number is made. Needed.")
	set.String(&c.Model, "model", "", "Name of the model. Requests give it. Needed.")
	set.Int(&c.BlockSize, "block-size", 16, "Tokens of a block. It is the engine's.", conf.Between(1, blockhash.MaxBlockSize))
	set.String(&c.Group, "group", "", "Routing group or tenant. Empty is the default group.")
	set.List(&c.Ranks, "dp-ranks", []string{"0"}, "Data-parallel ranks of the worker: numbers and ranges, like 0-7.")
	set.String(&c.Role, "role", "", "What the worker serves; empty is aggregated.", conf.OneOf("", "aggregated", "prefill", "decode"))
	set.String(&c.EngineHTTP, "engine-http", "", `URL of the engine's OpenAI endpoints, for routers to send requests to; empty:
		none are sent.`)
	set.String(&c.Tokenizer, "tokenizer", "", `Directory with the files of the engine's tokenizer (tokenizer.json, tokenizer_config.json,
		chat_template.jinja), which routers then fetch from the object store of NATS, to make prompts' tokens themselves. Empty: none.`)
	set.String(&c.ChatKwargs, "default-chat-template-kwargs", "", `The setting of this name that the engine was started with: a JSON object. For
		--tokenizer.`)
	set.String(&c.KVTransfer, "kv-transfer", "", `How prompts get from prefill to decode workers. vllm's way (NIXL), which asks the
		prefill worker first, or sglang's or mooncake's (vLLM's MooncakeConnector), which ask both at once. Empty: as the router is set.`,
		conf.OneOf("", string(registry.TransferVLLM), string(registry.TransferSGLang), string(registry.TransferMooncake)))
	set.String(&c.Credential, "engine-credential-name", "", `Name of what routers show the engine, an entry of their own
		--engine-credentials; empty: what they have for the worker or the model.`)
	set.String(&c.Bootstrap, "bootstrap", "", `host:port of a prefill worker of SGLang, or with vLLM's MooncakeConnector, where decode workers meet it; empty: port
		8998 of the host of --engine-http.`)
	set.String(&c.Peer, "peer", "", `host:port at which other engines fetch prefixes that this one has (vLLM's P2P tier: VLLM_P2P_SIDE_CHANNEL_HOST and _PORT
		of rank 0, further ranks at the next ports): routers then also tell this one where to fetch. Empty: neither.`)
	set.Int(&c.MaxBatched, "max-batched-tokens", 0, "Most tokens in a step of the engine, for busy thresholds; 0: unknown.",
		conf.Between(0, math.MaxInt32))
	set.Bool(&c.CPU, "cpu", false, "The worker has no accelerator; for mode device-aware-weighted of routers.")
	set.Int(&c.TotalBlocks, "total-blocks", 0, "Blocks of one rank's device cache; 0: unknown.", conf.Between(0, math.MaxInt32))
	set.List(&c.Tiers, "tiers", nil, `Tiers that the engine is to keep blocks on (device, host_pinned, disk, external), for kvctl doctor
		to say which of them nothing was seen of.`, conf.ShowDefault("not stated"))
	set.String(&c.EngineScheme, "engine-scheme", "", `Name of the function of the engine's block hashes, if equal content has
		equal ones on every worker that names the same.`)
	set.Bool(&c.Hybrid, "hybrid", false, `The model has caches besides full attention (sliding windows, Mamba, linear attention), and the engine's
		events do not show it, as those of vLLM do. What is found cached is the most that can be reused then, and answers say so.`)
	set.String(&c.CacheGroups, "cache-groups", "", `What the engine's events do not tell of the model's cache groups, as JSON:
		[{"number":2,"kind":"chunked_local_attention","block_size":16,"span":8192}]. Number 0 is full attention, any other one the
		engine's group_idx and 1; eagle says that hits of the group give up their last block.`)
	set.String(&c.Pools, "pools", "", `Stores of blocks that the engine shares with others, as JSON: [{"name":"mooncake","tiers":["external"],"chunk":256}]. What its
		events say of these tiers (host_pinned, disk, external; external where none is named) is said of the pool. chunk is how many tokens can only be read as a whole, and
		own_names says that the pool's events call blocks otherwise than the engine does (LMCache). age is after how many seconds a block counts as gone that is not said again, and source
		where the store itself says what it has (docs/pools.md).`)
	set.Bool(&c.Eagle, "eagle", false, "The engine hashes one token beyond each block (EAGLE, MTP), and its events do not show it, as those of SGLang do.")
	set.Group("Engine")
	set.String(&c.Engine, "engine", "", `Where the engine publishes its events: tcp://host:port of rank 0 (each rank adds its
		number to the port), or ipc:///path. This or --socket is needed.`)
	set.String(&c.Replay, "engine-replay", "", "The engine's replay endpoint, likewise. Without one, and without --engine-snapshot, every lost message begins the stream anew.")
	set.String(&c.Snapshot, "engine-snapshot", "", `Where the engine gives all that it holds, likewise, on engines that do (vLLM's and SGLang's snapshot_endpoint,
		to come). With it a stream that begins late or loses a message is made whole.`)
	set.List(&c.Loras, "lora-ids", nil, `Names of the engine's LoRA adapters, as number=name, for engines whose events give no more
		than the number (vLLM before 0.14). Blocks of an adapter without a name are left out and counted (unnamed_lora).`)
	set.String(&c.Topic, "engine-topic", "", "What the topic of the engine's messages begins with.")
	set.Bool(&c.ExactTopic, "engine-topic-exact", false, "The topic is --engine-topic and no longer one.")
	set.String(&c.Socket, "socket", "", `Unix socket to listen at for engines that speak no ZMQ, in place of --engine. The
		format is in docs/custom-engines.md.`)
	set.Bytes(&c.MaxLine, "socket-max-line", 16<<20, "Longest message on the Unix socket.", conf.Between[int64](1<<10, 1<<30))
	set.Group("Publishing")
	set.String(&c.Namespace, "namespace", "default", "Namespace of the streams, the registry and the replicas: letters, digits, - and _.")
	set.String(&c.Transport, "transport", string(registry.JetStream), `How events travel: through the space's stream, or over NATS
		without one, where this process is asked for what somebody missed.`, conf.OneOf(string(registry.JetStream), string(registry.Core)))
	set.String(&c.StateDir, "state-dir", "", `Directory in which the index and the engine's position are kept, so that a restart
		costs no state. "none" keeps nothing: every start then begins the streams anew.`,
		conf.ShowDefault("kvpublisher in --data-dir"))
	set.Duration(&c.SaveEvery, "state-every", 15*time.Second, `How often they are kept, while there is something new. The
		engine's replay must reach back that far.`, conf.Between(10*time.Millisecond, time.Hour))
	set.Bool(&c.Register, "register", true, "Announce the worker in the registry, with heartbeats.")
	set.Duration(&c.Lease, "lease", registry.DefaultLease, `How long the worker counts as there without a heartbeat; one is
		sent each third of it. At the end it is taken back if the engine is gone; else a restart within the lease goes unnoticed.`,
		conf.Between(time.Second, time.Hour))
	c.Stream.Declare(set)
	set.Duration(&c.StreamWait, "stream-wait", publish.DefaultStreamWait, `For how long the stream may refuse events, as it is full, before
		replicas are told to ask this process for them. Until it takes them again nothing waits for it.`, conf.Between(0, 24*time.Hour))
	c.Broker.Declare(set)
	c.Access.Declare(set, secure.Address{Setting: admin.Setting, Value: &c.Admin.Listen})
	c.Admin.Declare(set, "127.0.0.1:8092")
	set.Check(func() error {
		_, err := c.check()
		return err
	})
	c.Log.Declare(set)
}

// space returns the worker's index space.
func (c *Config) space() event.Space {
	return event.Space{Model: c.Model, BlockSize: uint32(c.BlockSize), Group: c.Group}
}

// check reports what is missing, and returns the ranks.
func (c *Config) check() ([]uint32, error) {
	switch {
	case c.Worker == "":
		return nil, errors.New("--worker is needed: the worker's id or name")
	case c.Model == "":
		return nil, errors.New("--model is needed")
	case (c.Engine == "") == (c.Socket == ""):
		return nil, errors.New("give either --engine or --socket")
	}
	if err := c.checkFiles(); err != nil {
		return nil, err
	}
	if _, err := parseGroups(c.CacheGroups); err != nil {
		return nil, err
	}
	if _, err := parsePools(c.Pools); err != nil {
		return nil, err
	}
	if _, err := parseLoras(c.Loras); err != nil {
		return nil, fmt.Errorf("--lora-ids: %w", err)
	}
	for _, name := range c.Tiers {
		if _, ok := event.ParseTier([]byte(name)); !ok {
			return nil, fmt.Errorf("--tiers: %q is none of device, host_pinned, disk and external", name)
		}
	}
	ranks, err := ParseRanks(c.Ranks)
	if err != nil {
		return nil, fmt.Errorf("--dp-ranks: %w", err)
	}
	for _, r := range ranks {
		if _, err := zmqfeed.RankEndpoint(c.Engine, r); c.Engine != "" && err != nil {
			return nil, fmt.Errorf("--engine: %w", err)
		}
		if _, err := zmqfeed.RankEndpoint(c.Replay, r); c.Replay != "" && err != nil {
			return nil, fmt.Errorf("--engine-replay: %w", err)
		}
		if _, err := zmqfeed.RankEndpoint(c.Snapshot, r); c.Snapshot != "" && err != nil {
			return nil, fmt.Errorf("--engine-snapshot: %w", err)
		}
	}
	return ranks, nil
}

// parseGroups reads what is set of cache groups.
func parseGroups(text string) (list []event.CacheGroup, err error) {
	if err = parseList(text, &list); err == nil {
		err = event.CheckCacheGroups(list)
	}
	if err != nil {
		return nil, fmt.Errorf("--cache-groups: %w", err)
	}
	return list, nil
}

// parsePools reads what is set of pools.
func parsePools(text string) (list []event.Pool, err error) {
	if err = parseList(text, &list); err == nil {
		err = event.CheckPools(list)
	}
	if err != nil {
		return nil, fmt.Errorf("--pools: %w", err)
	}
	return list, nil
}

// parseList reads a list that is given as JSON; an empty text is none.
func parseList(text string, list any) error {
	if text == "" {
		return nil
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(list)
}

// parseLoras reads the names of adapters, given as number=name.
func parseLoras(list []string) (map[int64]string, error) {
	loras := make(map[int64]string, len(list))
	for _, item := range list {
		number, name, _ := strings.Cut(item, "=")
		id, err := strconv.ParseInt(number, 10, 64)
		if err != nil || id == 0 || name == "" || loras[id] != "" {
			return nil, fmt.Errorf("%q is no number=name, or names an adapter once more", item)
		}
		loras[id] = name
	}
	return loras, nil
}

// maxRanks bounds a worker's ranks.
const maxRanks = 1024

// ParseRanks reads ranks given as numbers and ranges ("0", "2-5").
func ParseRanks(list []string) ([]uint32, error) {
	var ranks []uint32
	for _, item := range list {
		from, to, isRange := strings.Cut(item, "-")
		if !isRange {
			to = from
		}
		lo, err := strconv.ParseUint(from, 10, 32)
		hi, err2 := strconv.ParseUint(to, 10, 32)
		if err != nil || err2 != nil || lo > hi || hi-lo >= maxRanks {
			return nil, fmt.Errorf("%q is no rank and no range of at most %d ranks", item, maxRanks)
		}
		for r := lo; r <= hi; r++ {
			ranks = append(ranks, uint32(r))
		}
	}
	slices.Sort(ranks)
	ranks = slices.Compact(ranks)
	if len(ranks) == 0 || len(ranks) > maxRanks {
		return nil, fmt.Errorf("%d ranks, give 1 to %d", len(ranks), maxRanks)
	}
	return ranks, nil
}

// identity names what gives a rank's events their meaning.
func (c *Config) identity(dpRank uint32) uint64 {
	text := fmt.Sprintf("%q %q %d %q %q %d %t %t", c.Namespace, c.Model, c.BlockSize, c.Group, c.Worker, dpRank, c.Eagle, c.Socket != "")
	if len(c.Loras) > 0 {
		text += fmt.Sprintf(" %q", c.Loras)
	}
	if pooled := c.pooled(); pooled != [event.NumTiers]bool{} {
		text += fmt.Sprintf(" %v", pooled)
	}
	return xxh3.HashString(text)
}

// pooled returns which tiers are those of pools.
func (c *Config) pooled() (is [event.NumTiers]bool) {
	pools, _ := parsePools(c.Pools) // check has read them
	for t := range is {
		is[t] = event.PoolOf(pools, event.Tier(t))
	}
	return is
}

// storeOf returns where a rank's state is kept, and what to close when it is no
// longer used.
func (c *Config) storeOf(dpRank uint32) (store, io.Closer, error) {
	dir := c.StateDir
	switch dir {
	case "none":
		return nowhere{}, io.NopCloser(nil), nil
	case "":
		dir = filepath.Join(c.Broker.DataDir, "kvpublisher")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("--state-dir: %w", err)
	}
	// The identity is in it, so that sidecars of one machine may share the directory.
	name := filepath.Join(dir, fmt.Sprintf("%016x-%d", c.identity(dpRank), dpRank))
	used, err := lock(name + ".lock")
	return file{name + ".state"}, used, err
}
