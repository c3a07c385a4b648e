package mocker

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/bench/workload"
	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/registry"
)

// Values of Config.Routing, AtEnd and Progress.
const (
	RouteSession    = "session"
	RouteRoundRobin = "round-robin"
	RouteRandom     = "random"

	EndExit = "exit"
	EndWait = "wait"
	EndLoop = "loop"

	ProgressAuto = "auto"
	ProgressText = "text"
	ProgressJSON = "json"
	ProgressNone = "none"

	HashesShared = "shared"
	HashesOwn    = "own"
)

// Config holds the settings of a run. Declare gives them their defaults.
type Config struct {
	Trace    string  // path of a trace; empty: the generated workload
	IDTokens int     // tokens an id of the trace stands for; 0: find out
	Speed    float64 // virtual seconds a second; 0: as fast as possible
	Requests int     // how many to send; 0: all
	AtEnd    string  // after the last request
	Routing  string  // which engine gets a request
	Seed     int     // of the workload, of random routing and of own hashes
	Workload workload.Config

	Model        string
	Group        string // routing group or tenant
	FirstWorker  int    // worker ids count from here
	Workers      int
	DPRanks      int // engines a worker
	EngineHashes string
	CacheGroups  []string // Engine.Groups as text
	Engine       mock.Config
	Timing       mock.Timing

	// DieEvery, if above 0, is after how much virtual time the last worker but one (or the
	// only one) dies, each time, and DieFor how long it is away.
	DieEvery, DieFor time.Duration

	HTTP HTTPConfig

	// Through, if set, chooses in place of Routing.
	Through Through

	Progress  string
	EventsOut string // file that records the published events; empty: none

	// Tail ends each line of progress for people, in place of what the fleet holds;
	// nil: that. It is called by the goroutine that prints.
	Tail func() string
}

// Declare adds the settings to the set.
func (c *Config) Declare(set *conf.Set) {
	c.Workload = workload.Default()
	c.Timing = mock.DefaultTiming()

	set.Group("Load")
	set.String(&c.Trace, "trace", "", `Trace of requests to replay: JSON lines in Mooncake's format, plain or compressed with
		zstd. Mooncake's own are at https://github.com/kvcache-ai/Mooncake, folder FAST25-release/traces. Without it,
		requests are generated.`)
	set.Int(&c.IDTokens, "trace-id-tokens", 0, `Tokens of a prompt that an id of the trace stands for (512 in Mooncake's traces).
		0 finds out from the first requests.`, conf.Between(0, 1<<20))
	set.Float(&c.Speed, "speed", 1, `How many times faster than in the trace requests arrive and engines compute. 0 is as
		fast as possible.`, conf.Between[float64](0, 1e6))
	set.Int(&c.Requests, "requests", 0, "Stop sending after so many requests. 0 sends all of a trace, or for ever.",
		conf.Between(0, math.MaxInt32))
	set.String(&c.AtEnd, "at-end", EndExit, `What to do after the last request has been answered and its events are acknowledged:
		exit, wait for a signal (the workers stay known), or loop over the requests again.`, conf.OneOf(EndExit, EndWait, EndLoop))
	set.String(&c.Routing, "routing", RouteSession, `Which engine gets a request: the one that has its session (requests without
		one go round robin), each in turn, or a random one.`, conf.OneOf(RouteSession, RouteRoundRobin, RouteRandom))
	set.Int(&c.Seed, "seed", 1, "Seed of what is by chance. Here: the generated workload, random routing and --engine-hashes own.",
		conf.Between(0, math.MaxInt32))

	w := &c.Workload
	set.Group("Generated workload")
	set.Float(&w.Rate, "rate", w.Rate, "Mean requests a second.", conf.Between(1e-3, 1e6))
	set.Int(&w.SystemPrompts, "system-prompts", w.SystemPrompts, "How many system prompts there are.", conf.Between(0, 1<<24))
	set.Int(&w.SystemTokens, "system-tokens", w.SystemTokens, `Length of each system prompt. The most popular one consists of
		the tokens 0, 1, 2, ….`, conf.Between(0, 1<<24))
	set.Float(&w.Zipf, "zipf", w.Zipf, "The k-th system prompt is 1/k^zipf times as popular as the first.", conf.Between[float64](0, 10))
	set.Int(&w.MaxTokens, "max-tokens", w.MaxTokens, `A session ends before its prompt and answer are longer, or
		longer than --cache-blocks.`, conf.Between(1<<10, 1<<24))
	set.Float(&w.Conversation.Weight, "conversations", w.Conversation.Weight, "Share of sessions that are conversations, relative to the other kinds.", conf.Between[float64](0, 1e6))
	set.Float(&w.Agent.Weight, "agents", w.Agent.Weight, "Share of sessions that are agents with a long context.", conf.Between[float64](0, 1e6))
	set.Float(&w.OneOff.Weight, "one-offs", w.OneOff.Weight, "Share of sessions that are a single request.", conf.Between[float64](0, 1e6))
	set.Duration(&w.BurstEvery, "burst-every", w.BurstEvery, "Time between the starts of bursts; 0s for none.", conf.Between(0, time.Hour))
	set.Duration(&w.BurstLength, "burst-length", w.BurstLength, "How long a burst lasts.", conf.Between(0, time.Hour))
	set.Float(&w.BurstFactor, "burst-factor", w.BurstFactor, "How many times more sessions start during a burst.", conf.Between(1e-3, 1e3))

	set.Group("Fleet")
	set.String(&c.Model, "model", "mock", "Name of the model. The fleet serves it.")
	set.String(&c.Group, "group", "", "Routing group or tenant. It is the fleet's.")
	set.Int(&c.Workers, "workers", 8, "Number of workers.", conf.Between(1, 1<<16))
	set.Int(&c.FirstWorker, "first-worker", 1, "Id of the first worker; the others follow.", conf.Between(0, math.MaxInt32))
	set.Int(&c.DPRanks, "dp-size", 1, "Data-parallel ranks of each worker. Each is an engine with its own cache.", conf.Between(1, 1<<10))
	set.Int(&c.Engine.BlockSize, "block-size", mock.DefaultBlockSize, "Tokens of a block. It is every engine's.", conf.Between(1, blockhash.MaxBlockSize))
	set.Int(&c.Engine.Blocks, "cache-blocks", mock.DefaultBlocks, "Blocks in the cache of an engine.", conf.Between(1, 1<<30))
	set.List(&c.CacheGroups, "cache-kinds", nil, `Cache groups of the model besides full attention, each as KIND, KIND:SPAN, KIND:SPAN:BLOCK or
		KIND:SPAN:BLOCK:BLOCKS: vLLM's name of its kind (sliding_window, chunked_local_attention, mamba, full_attention), tokens of the window or
		the chunk, tokens of a block (0: --block-size), and how many blocks it keeps (0: --cache-blocks).`)
	set.Check(func() (err error) {
		if c.Engine.Groups, err = mock.ParseGroups(c.CacheGroups); err != nil {
			return fmt.Errorf("--cache-kinds: %w", err)
		}
		return nil
	})
	set.Int(&c.Engine.MaxRunning, "max-running", mock.DefaultMaxRunning, "Most requests that an engine runs at once.", conf.Between(1, 1<<20))
	set.Int(&c.Engine.MaxBatched, "max-batched", mock.DefaultMaxBatched, "Most tokens that an engine computes in a step.", conf.Between(1, 1<<24))
	set.Int(&c.Engine.MaxWaiting, "max-waiting", mock.DefaultMaxWaiting, "Most requests that wait at an engine; more are refused and counted.", conf.Between(1, 1<<24))
	set.String(&c.EngineHashes, "engine-hashes", HashesShared, `Whether all engines call the same content by the same hash, as with a
		fixed hash seed, or each by its own.`, conf.OneOf(HashesShared, HashesOwn))

	set.Duration(&c.DieEvery, "die-every", 0, `How often the last worker but one dies: it says no more, what it held is lost, and its
		requests go to others. 0s is never; not with --http or --events-out.`, conf.Between(0, time.Hour))
	set.Duration(&c.DieFor, "die-for", 30*time.Second, "How long it is away then. It returns with an empty cache, and --die-every begins anew.",
		conf.Between(time.Millisecond, time.Hour))

	c.HTTP.declare(set)

	set.Group("Output")
	set.String(&c.Progress, "progress", ProgressAuto, `A line a second on standard output: text on a terminal, else JSON, or as
		stated.`, conf.OneOf(ProgressAuto, ProgressText, ProgressJSON, ProgressNone))
	set.String(&c.EventsOut, "events-out", "", "File that records every published event in order, in the native encoding.")
}

// defaultTokenizeSpeed is that of the Hugging Face library on a machine like those of engines, in MB/s.
const defaultTokenizeSpeed = 1.3

func (h *HTTPConfig) declare(set *conf.Set) {
	set.Group("HTTP")
	set.Bool(&h.On, "http", false, `Answer OpenAI's endpoints instead of sending requests: each worker listens, takes the time
		that a real engine would (--speed 0: none), publishes its events and is registered for routers to find.`)
	set.String(&h.Host, "http-host", "127.0.0.1", "Address that the workers listen at.")
	set.Int(&h.Port, "http-port", 9000, "Port of the first worker; the others have those that follow. 0 takes free ones, which the log names.",
		conf.Between(0, 1<<16-1))
	set.String(&h.Advertise, "http-advertise", "", "Host to register for routers to send requests to.", conf.ShowDefault("that of --http-host"))
	set.String(&h.Role, "role", "", "What the worker serves; empty is aggregated. All of them do.",
		conf.OneOf("", string(registry.Aggregated), string(registry.Prefill), string(registry.Decode)))
	set.String(&h.Transfer, "kv-transfer", "", `How prompts get from prefill to decode workers. As with
		vllm, sglang or mooncake; empty is not at all.`, conf.OneOf("", string(registry.TransferVLLM), string(registry.TransferSGLang), string(registry.TransferMooncake)))
	set.List(&h.Loras, "adapters", nil, "Names of LoRA adapters that the workers serve too.")
	set.String(&h.Kind, "engine-kind", "", "Which engine the workers are, by what they take as tokens of a chat's prompt and how they tell their version.",
		conf.OneOf("", mockapi.KindVLLM, mockapi.KindSGLang), conf.ShowDefault("sglang with --kv-transfer=sglang, else vllm"))
	set.String(&h.Release, "engine-release", "", "Which release of it.", conf.ShowDefault("the first that takes tokens with a chat"))
	set.String(&h.Tokenizer, "model-files", "", `Directory of the model's tokenizer.json, and tokenizer_config.json or chat_template.jinja where
		it has a chat template, by which the workers make tokens. Without it four bytes are a token.`)
	set.String(&h.Template, "engine-chat-template", "", "File of a chat template in place of the directory's.")
	set.String(&h.Kwargs, "engine-template-kwargs", "", "Variables of the chat template that requests do not set, as a JSON object.")
	set.Float(&h.TokenizeSpeed, "tokenize-speed", defaultTokenizeSpeed, `Megabytes of text that a worker tokenizes in a second, one text after the other, for
		/tokenize and again for a request that does not bring its tokens; --speed makes it faster, too. The Hugging Face library
		does 1.1 to 1.5. 0 takes no longer than it takes here.`, conf.Between[float64](0, 1e6))
	set.Int(&h.Events, "engine-events", 0, `Publish events over ZMQ as engines do, for kvpublisher, and not to NATS: rank 0 of the first worker at
		this port, further ranks and workers at those that follow. Nothing registers then but their kvpublishers. 0 publishes to NATS.`, conf.Between(0, 1<<16-1))
	set.Int(&h.Replay, "engine-replays", 0, "Port of the replay socket of --engine-events, likewise; 0 is none.", conf.Between(0, 1<<16-1))
	set.List(&h.Wrong, "engine-wrong", nil, `Mistakes of how the workers were started, for kvctl doctor to find: salt (what is in front of the engine salts
		prompts), unreported (what was cached is not said), clock (an hour behind), claims (all of each prompt is called cached), lost (a decode worker gets no prompt, and fails), and of --engine-events silent (they are off) and late.`)
	set.Check(func() error {
		for _, w := range h.Wrong {
			if !slices.Contains(mockapi.Wrongs(), w) {
				return fmt.Errorf("--engine-wrong %q: give some of %s", w, strings.Join(mockapi.Wrongs(), ", "))
			}
		}
		return nil
	})
	set.Bool(&h.Peers, "peers", false, `The workers fetch prefixes from each other where a router tells them to, as with vLLM's P2P tier. With one rank each.`)
	set.Duration(&h.Link, "peer-link", 6*time.Microsecond, `How long a worker's link takes to give a token's KV entries; --speed makes it faster, too.`, conf.Between(0, time.Second))
	set.Int(&h.Tokens, "default-tokens", 16, "Tokens to generate for a request that does not say how many.", conf.Between(1, 1<<20))
}

// engines is how many there are; worker i has ranks i × DPRanks and on.
func (c *Config) engines() int { return c.Workers * c.DPRanks }

// Space is that of the fleet's events.
func (c *Config) Space() event.Space {
	return event.Space{Model: c.Model, BlockSize: uint32(c.Engine.BlockSize), Group: c.Group}
}

// newFleet makes the engines, whose events go to emit.
func (c *Config) newFleet(emit func(engine int) sink) (*mock.Fleet, error) {
	engines := make([]*mock.Engine, c.engines())
	for i := range engines {
		var err error
		if engines[i], err = c.newEngine(i, emit(i)); err != nil {
			return nil, err
		}
	}
	timing := c.Timing
	return mock.NewFleet(engines, func(_ int, r *mock.Report) time.Duration { return timing.Step(r) }), nil
}

// newEngine makes an idle engine.
func (c *Config) newEngine(i int, emit sink) (*mock.Engine, error) {
	ec := c.Engine
	ec.DPRank = uint32(i % c.DPRanks)
	if c.EngineHashes == HashesOwn {
		ec.HashSeed = uint64(c.Seed)<<32 + uint64(i) + 1
	}
	e, err := mock.New(ec, emit)
	if err != nil {
		return nil, fmt.Errorf("make engine %d: %w", i, err)
	}
	return e, nil
}
