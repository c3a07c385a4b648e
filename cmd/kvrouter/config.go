package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/console"
	"github.com/kvatlas/kvatlas/internal/discover/objective"
	"github.com/kvatlas/kvatlas/internal/program/admin"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/httpconf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/picker"
	"github.com/kvatlas/kvatlas/internal/router/proxy"
	"github.com/kvatlas/kvatlas/internal/router/quota"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/replica"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/route/approx"
)

// config holds all settings of the program.
type config struct {
	Log     obs.LogConfig
	Access  secure.Settings
	Shown   secure.EngineSettings
	Admin   admin.Settings
	Console console.Settings
	Replica replica.Config
	Route   route.Settings
	Approx  approx.Config
	Proxy   proxy.Config
	Picker  picker.Config
	Pool    objective.Settings

	Service        proc.ServiceConfig
	Events         bool
	ReplicaSync    bool
	Quota          quota.Config
	Engines, Loras []string
	Aliases        []string
	// Each is value or model=value.
	Objectives, FirstTargets, TokenTargets []string

	Sessions []string // ways of knowing them

	ReadyWorkers     int
	ReadyWithoutNATS time.Duration
	Prefill          []string // URLs of prefill engines
	Transfer         string
	Model            string
	BlockSize        int
	HealthEvery      time.Duration
	HealthPath       string
	HealthTimeout    time.Duration
	LoadEvery        time.Duration
	LoadPath         string
	ModelsEvery      time.Duration
	Unhealthy        int
	PairLosses       int
	PairRest         time.Duration
	BusyFraction     float64 // below 0: unset
	BusyTokens       int
	BusyTokensPart   float64
	Seed             int
	Credits          []string
	Trust            []string
	AccessLog        string
	AccessLogBuffer  int64
	Decisions        account.Config
	TokenCacheBytes  int64
	ResponseBytes    int64
	Tokenizers       []string
	TurnCache        int64
	HTTP2            bool
	HTTP2Streams     int

	settings *conf.Set
}

func (c *config) declare(set *conf.Set) {
	c.Service.Declare(set, 5*time.Minute, "answers under way")
	c.declareChoice(set)
	c.declarePrompts(set)
	c.declareEngines(set)
	c.declareHTTP(set)
	set.Group("Gateways")
	c.Picker.Declare(set)
	c.Pool.Declare(set)
	c.Proxy.Gateway.Declare(set)
	set.Check(c.finish) // before the replica's, which goes by what it finds
	c.Replica.Declare(set)
	c.Log.Declare(set)
	c.Access.Declare(set, secure.Address{Setting: "http-listen", Value: &c.Proxy.Listen}, secure.Address{Setting: "admin-listen", Value: &c.Admin.Listen},
		secure.Address{Setting: "picker-listen", Value: &c.Picker.Listen})
	c.Admin.Declare(set, "127.0.0.1:8001")
	c.Console.Declare(set)
	c.settings = set
}

func (c *config) declareChoice(set *conf.Set) {
	d := route.DefaultSettings()
	r := &c.Route
	set.Group("Choice")
	set.String(&r.Mode, "mode", d.Mode, `How a worker is chosen. auto predicts times from what is cached and in use, and
		learns how fast workers are; kv weighs the same by --overlap-weight; dynamo and prefill-x-batch do so by other
		formulas; direct takes the worker that a trusted caller names.`, conf.OneOf(route.Modes()...))
	set.List(&c.Objectives, "objective", []string{d.Objective}, `What mode auto keeps low: ttft, the time to first tokens; e2e, that to the ends of
		requests; balanced, both. docs/routing.md has what each costs. With model=objective, as in ttft,llama=e2e, a model has its own.`)
	set.List(&c.FirstTargets, "ttft-target", nil, `Time to the first token that requests are to keep, as 500ms, or of a model, as llama=500ms.
		Mode auto then sends them where the most keep their targets, whatever the objective. 0 is none.`, conf.ShowDefault("none"))
	set.List(&c.TokenTargets, "itl-target", nil, "The same for the mean time of each further token.", conf.ShowDefault("none"))
	set.Float(&r.OverlapWeight, "overlap-weight", d.OverlapWeight, `What a block to be computed costs, in blocks in use, in mode
		kv. 0 is pure load balancing, in mode auto too: no index is kept or subscribed to.`, conf.Between(0, 1e6))
	set.Float(&r.PrefillLoadScale, "prefill-load-scale", d.PrefillLoadScale, "The same for mode dynamo.", conf.Between(0, 1e6))
	set.Float(&r.Temperature, "temperature", d.Temperature, `0 takes the lowest cost. Above it the choice is by chance, the more
		even the higher.`, conf.Between(0, 1e6))
	set.Float(&c.Route.StaleCredit, "stale-credit", d.StaleCredit, `What part of the leading blocks counts that a worker is said to hold
		while the index lacks events of it.`, conf.Between(0.0, 1))
	set.Bool(&r.Doubt, "doubt", d.Doubt, `Whether what a worker is said to hold counts for the part that its engine finds,
		where the engine's reports contradict it again and again and nothing explains that; its publisher is then asked for all that it holds.`)
	set.List(&c.Credits, "tier-credits", []string{"1", "0.75", "0.25", "0"}, `What a cached block saves of a computed one, on
		device, host, disk and external storage: four numbers from 0 to 1.`)
	set.Float(&c.Route.PoolCredit, "pool-credit", d.PoolCredit, `What a block in a pool saves of a computed one, for workers that name the pool, where --tier-credits
		has no more for external storage. Mode auto goes by what it learns that loading takes. 0: pools are not counted.`, conf.Between(0.0, 1))
	set.Float(&r.DeviceRatio, "device-ratio", d.DeviceRatio, `How many times faster than a CPU worker another is taken to be in
		mode device-aware-weighted.`, conf.Between(1e-6, 1e6))
	set.Bool(&r.TrackActiveBlocks, "track-active-blocks", d.TrackActiveBlocks, "Whether blocks in use count as load.")
	set.Bool(&r.AssumeKVReuse, "assume-kv-reuse", d.AssumeKVReuse, "Whether a block that live requests share counts once.")
	set.Bool(&r.TrackOutputBlocks, "track-output-blocks", d.TrackOutputBlocks, "Whether blocks filled by generation count.")
	set.Bool(&r.OutputDecay, "output-decay", d.OutputDecay, `Let them count less towards the expected end of their request.
		Needs --track-output-blocks.`)
	set.Float(&c.BusyFraction, "busy-decode-fraction", -1, `A rank with more than this part (0 to 1) of its blocks in use gets no
		requests. Below 0: no limit. POST /busy_threshold changes it at run time.`, conf.Between[float64](-1, 1), conf.ShowDefault("no limit"))
	set.Int(&c.BusyTokens, "busy-prefill-tokens", -1, `A rank with more prompt tokens to compute than this gets no requests. Below
		0: no limit.`, conf.Between(-1, math.MaxInt32), conf.ShowDefault("no limit"))
	set.Float(&c.BusyTokensPart, "busy-prefill-fraction", -1, `The same, as a part of the tokens that its engine batches at most.
		Below 0: no limit.`, conf.Between(-1, 1e6), conf.ShowDefault("no limit"))
	set.Duration(&r.Lease, "booking-lease", d.Lease, "A reservation without progress for so long counts as over; 0 never. What the router passes on ends when it does.", conf.Between(0, 24*time.Hour))
	set.Duration(&r.ReportLifetime, "report-lifetime", d.ReportLifetime, "How long a load that an engine reported counts.",
		conf.Between(time.Millisecond, time.Hour))
	set.Int(&c.Seed, "seed", 1, "Seed of what is by chance. Here: ties, and choices by temperature. Without --replica-sync give each router another.", conf.Between(0, math.MaxInt32))
	set.Bool(&c.ReplicaSync, "replica-sync", true, `Tell the other routers of the namespace what this one places. A router that
		meets no other sends heartbeats only.`)
	set.Duration(&c.Quota.Every, "tenants-every", 100*time.Millisecond, `How often routers tell each other what tenants used of their
		limits. What others let in meanwhile may be too much.`, conf.Between(time.Millisecond, time.Minute))
	set.Duration(&c.Quota.Silent, "tenants-silent", 3*time.Second, `A router that says nothing for so long is taken for cut off: it keeps its
		part of each limit, and the others theirs.`, conf.Between(time.Second, time.Hour))
	set.Duration(&c.Quota.Forget, "tenants-forget", time.Minute, "One that says nothing for so long is gone, and its part the others'.",
		conf.Between(time.Second, 24*time.Hour))
}

func (c *config) declarePrompts(set *conf.Set) {
	set.Group("Prompts")
	set.Bool(&c.Events, "kv-events", true, `Know what workers have cached from their events. With false, from this router's own
		choices.`)
	set.Duration(&c.Approx.TTL, "ttl", 120*time.Second, "Without events: how long a block counts as cached after its last use.",
		conf.Between(time.Millisecond, 24*time.Hour))
	set.Int(&c.Approx.MaxBlocks, "tree-size", 1<<20, "Without events: how many blocks are kept before they are pruned.",
		conf.Between(1, 1<<30))
	set.Float(&c.Approx.PruneTarget, "prune-target", 0.8, "Without events: to what part of --tree-size they are pruned.",
		conf.Between(0.01, 1.0))
	set.String(&c.Proxy.Tokens, "tokens", "", `Where the tokens of a text come from: engine asks the engine's /tokenize; bytes
		takes chunks of bytes for blocks, which only works without events; none looks up token arrays only.`,
		conf.OneOf("", proxy.TokensEngine, proxy.TokensBytes, proxy.TokensNone), conf.ShowDefault("engine with events, bytes without"))
	set.Bytes(&c.TokenCacheBytes, "token-cache", 64<<20, "Memory for tokens of texts that were asked for before.",
		conf.Between[int64](0, 1<<40))
	set.List(&c.Tokenizers, "tokenizers", nil, `Directories with the files of models' tokenizers (tokenizer.json, tokenizer_config.json,
		chat_template.jinja), by which prompts become tokens without asking an engine: model=DIR, or DIR, which has one for each model
		by its name. They are read again when they change, and used as long as engines make the same of prompts.`)
	set.Float(&c.Proxy.Tokenizers.Sample, "tokenizer-sample", 0.001, `The part of such prompts whose tokens are compared with what an engine
		makes of them.`, conf.Between(0, 1.0))
	set.Int(&c.Proxy.Tokenizers.Rate, "tokenizer-sample-rate", 2, "The most that are compared in a second, of which each model has an even part.", conf.Between(0, 1000))
	set.Int(&c.Proxy.Tokenizers.Most, "max-tokenizers", 32, `Models whose tokenizers are in memory at once; those with the same files count
		once.`, conf.Between(1, 4096))
	set.Bool(&c.Proxy.PassTokens, "pass-tokens", false, `Send engines the tokens of a prompt with its request, so that they are made once: those that were
		made here by a model's files, of texts and chats without media, to engines that were themselves seen to make the same and that take them (vLLM
		from 0.27.0 on, of messages and responses from 0.33.0; SGLang from 0.5.13, by what they say of themselves; see --models-every). The rest of the body stays as it came.`)
	set.Bytes(&c.TurnCache, "turn-cache", 64<<20, `Memory for each model's texts and their tokens, by which a conversation's next turn tokenizes
		what is new.`, conf.Between[int64](0, 1<<36))
	set.Int(&c.Proxy.MaxPrompt, "max-prompt-tokens", 1<<20, `Tokens of a prompt that are looked at; what follows is passed on only. A longer
		text (of four bytes a token) is not tokenized.`, conf.Between(1, 1<<28))
	set.Duration(&c.Proxy.TokenizeTimeout, "tokenize-timeout", time.Second, `Time that an engine has to tokenize a text; then the
		prompt counts as not cached.`, conf.Between(time.Millisecond, time.Minute))
	set.Duration(&c.Proxy.TokenizeHedge, "tokenize-hedge", 50*time.Millisecond, `Time after which another engine is asked for a text's
		tokens too, until it is known how long 99 of 100 answers take; 0 is never.`, conf.Between(0, time.Minute))
	set.Duration(&c.Proxy.TokenizeHedgeLeast, "tokenize-hedge-least", 2*time.Millisecond, "The least time after which that is done once it is known.",
		conf.Between(0, time.Minute))
}

func (c *config) declareEngines(set *conf.Set) {
	p := &c.Proxy
	set.Group("Engines")
	set.List(&c.Engines, "engines", nil, `URLs of engines that do not register: worker 0, 1, … of --model. With --nats none they
		and --registry-workers are all that there is.`)
	set.List(&c.Prefill, "prefill-engines", nil, `URLs of prefill engines that do not register: the workers after those of
		--engines, which then go on with the prompts that these compute.`)
	set.String(&c.Transfer, "kv-transfer", string(registry.TransferVLLM), `How prompts get from prefill to decode workers. It
		holds for those that do not say it when they register: vllm asks the prefill worker first and gives what it answers to the decode worker; sglang asks
		both at once, to meet at port 8998 of the prefill worker, and so does mooncake (vLLM's MooncakeConnector).`,
		conf.OneOf(string(registry.TransferVLLM), string(registry.TransferSGLang), string(registry.TransferMooncake)))
	set.Int(&c.PairLosses, "pair-losses", 3, `Prompts in a row that must not come from a prefill worker to a decode worker, as the
		decode worker says or fails, for the two not to be paired for --pair-rest. 0: they always are.`, conf.Between(0, 1<<20))
	set.Duration(&c.PairRest, "pair-rest", time.Minute, "How long that is. One more that does not come then is enough.", conf.Between(time.Second, 24*time.Hour))
	set.String(&c.Model, "model", "", "Name of the model. It is that of --engines.")
	set.Int(&c.BlockSize, "block-size", 16, "Tokens of a block. It is that of --engines.", conf.Between(1, blockhash.MaxBlockSize))
	set.List(&c.Loras, "loras", nil, `Names of LoRA adapters that requests may give as their model, as adapter=model,
		beside those that engines list.`)
	set.List(&c.Aliases, "aliases", nil, `Names that requests may give in place of a model's or an adapter's, as alias=name, where name is no alias.
		Engines are sent the name. What else a model is called its engines list at /v1/models.`)
	set.Int(&c.ReadyWorkers, "ready-workers", 0, "Workers that must be there to take requests for /readyz to say that the router is ready.",
		conf.Between(0, 1<<20))
	set.Duration(&c.ReadyWithoutNATS, "ready-without-nats", 10*time.Second, `How long NATS must be away after the start for /readyz to say that the
		router is ready with the workers of --engines, --prefill-engines and --registry-workers alone, if one of them can take requests. 0 is never.`,
		conf.Between(0, 24*time.Hour))
	set.Duration(&c.HealthEvery, "health-every", 5*time.Second, "How often engines are asked for their health; 0 is never.",
		conf.Between(0, time.Hour))
	set.String(&c.HealthPath, "health-path", "/health", "What they are asked.")
	set.Duration(&c.HealthTimeout, "health-timeout", 2*time.Second, "Time in which they must answer, that and what else they are asked.", conf.Between(time.Millisecond, time.Minute))
	set.Duration(&c.LoadEvery, "load-every", 2*time.Second, `How often engines are asked for their load, while there is a busy
		threshold that goes by it; 0 is never.`, conf.Between(0, time.Hour))
	set.String(&c.LoadPath, "load-path", "/metrics", "Where their load is, as metrics of vLLM or SGLang.")
	set.Duration(&c.ModelsEvery, "models-every", 15*time.Second, `How often engines are asked for the LoRA adapters that they
		serve and the names that their model goes by, at /v1/models; 0 is never.`, conf.Between(0, time.Hour))
	set.Int(&c.Unhealthy, "unhealthy-after", 3, "Health checks that fail in a row after which an engine gets no requests until one does not.",
		conf.Between(1, 1<<20))
	c.declareBreaker(set)
	set.Int(&p.Retries, "retries", 2, "How often a request goes to another worker before the first byte of an answer.", conf.Between(0, 10))
	set.Float(&p.RetryShare, "retry-share", 0.1, "Most retries, as a part of all requests.", conf.Between[float64](0, 1))
	set.Int(&p.RetryBurst, "retry-burst", 64, "Retries that may come at once, before that part counts.", conf.Between(0, 1<<20))
	set.Duration(&p.RetryWait, "retry-wait", 25*time.Millisecond, `Pause before a second retry, less a part by chance; twice as long before
		each further one. The first goes at once, to another engine.`, conf.Between(time.Millisecond, time.Second))
	set.Bool(&p.Retry500, "retry-500", true, `Send a request that an engine answers with status 500, or will not have (401, 403, 404, 405,
		407, 408, 410, 421, 501, 505; or 400, 413, 415 and 422 once it says so to all), to one other. If that fails at it too, the request is at fault: its client gets the answer, and neither engine is blamed.`)
	set.Duration(&p.DialTimeout, "dial-timeout", 2*time.Second, "Time to connect to an engine.", conf.Between(time.Millisecond, time.Minute))
	set.Duration(&p.FirstByte, "first-byte-timeout", 10*time.Minute, `Time in which an engine must begin its answer, which one that does
		not stream does at its end; 0 is for ever.`, conf.Between(0, 24*time.Hour))
	set.Duration(&p.EngineIdle, "engine-idle-timeout", 5*time.Minute, "Most time between two chunks of an answer. A stream's comments and pings are none, behind its first token, nor are events that carry nothing of an answer.",
		conf.Between(time.Millisecond, 24*time.Hour))
	set.Duration(&p.KeepAlive, "engine-keep-alive", 3*time.Second, `How long an idle connection to an engine is kept open. Give less than
		the engine does: vLLM and SGLang close theirs after 5s.`, conf.Between(time.Millisecond, time.Hour))
	set.Int(&p.IdleConns, "idle-connections", 1024, "Idle connections kept to each engine.", conf.Between(1, 1<<20))
	c.Shown.Declare(set)
	set.Bool(&p.ForwardClient, "forward-client", true, "Tell engines the client's address, at the end of X-Forwarded-For.")
	set.List(&p.PassHeaders, "pass-headers", nil, `Headers of clients that engines get with --tokens-file although their names are those of
		credentials. Others are kept from engines: those with auth, token, key, secret, bearer, dpop, passw, passphrase, passcode, pwd, credential, cookie, cert, jwt, oidc, saml, assertion, signature or principal
		in the name.`)
	set.List(&p.Origins, "allowed-origins", nil, `Origins, as https://chat.example, or *: all, whose pages may ask from browsers what needs no operator, and read the
		answers. The router says so itself, also to who shows no token yet. Empty: pages of other sites can do so where engines let them, and not with --tokens-file.`)
	set.Bool(&p.PassThrough, "pass-through", true, `Pass on to engines what is no completion or chat, too. With false there are no
		other routes than the router's own.`)
	set.List(&p.Routes, "inference-routes", proxy.Kinds(), `What of that goes to an engine of the model for whoever may
		generate: the routes by which engines of these kinds answer, and others that are named here, as /path or POST /path.
		All else administers engines. Kinds: `+strings.Join(proxy.Kinds(), ", ")+".")
	set.String(&p.Administration, "engine-administration", proxy.AdminOperators, `Whose requests on all other routes go on, to all
		engines of a model or to the one that X-Kvatlas-Worker names: operators, with a token of that role; open, also
		everybody where there is no --tokens-file; none, nobody.`, conf.OneOf(proxy.AdminOperators, proxy.AdminOpen, proxy.AdminNone))
	set.Duration(&p.AdministrationTimeout, "engine-administration-timeout", 10*time.Minute, "Time that an engine has for such a request.",
		conf.Between(time.Millisecond, 24*time.Hour))
}

// declareBreaker declares when an engine is left out for what becomes of its requests.
func (c *config) declareBreaker(set *conf.Set) {
	b, d := &c.Route.Breaker, route.DefaultSettings()
	set.Int(&b.Failures, "breaker-failures", d.Breaker.Failures, `Requests in a row that an engine fails at after which it gets none, until a few
		that it is then sent succeed; 0 is never. All --breaker- settings hold for /tokenize too, by itself.`, conf.Between(0, 1<<20))
	set.Float(&b.Share, "breaker-share", d.Breaker.Share, "The same for a part of the requests of --breaker-window that failed; 0 is never.", conf.Between[float64](0, 1))
	set.Duration(&b.Window, "breaker-window", d.Breaker.Window, "How long requests count for --breaker-share.", conf.Between(time.Millisecond, time.Hour))
	set.Int(&b.Least, "breaker-requests", d.Breaker.Least, "How many it takes at least.", conf.Between(1, 1<<20))
	set.Duration(&b.Wait, "breaker-wait", d.Breaker.Wait, `How long an engine is left out, less a part by chance; twice as long each time in
		succession. One that says with status 429, 503 or 529 when to come again is left out until then.`, conf.Between(time.Millisecond, time.Hour))
	set.Duration(&b.MaxWait, "breaker-max-wait", d.Breaker.MaxWait, `The longest of these. Of other routers' words that they leave an engine out,
		one in so long counts here.`, conf.Between(time.Millisecond, time.Hour))
	set.Int(&b.Probes, "breaker-probes", d.Breaker.Probes, `Requests that it is sent at once after that, and that must succeed for it to get all
		again.`, conf.Between(1, 1<<20))
	set.Duration(&c.Route.OverdueAfter, "overdue-after", d.OverdueAfter, `An engine that gives nothing to anybody for so long while a request waits for
		its first byte gets no others, and streams that wait so long go elsewhere. It is eight times the predicted time if that is longer; 0 is
		for ever.`, conf.Between(0, 24*time.Hour))
	set.Bool(&c.Proxy.AskSilent, "ask-silent", true, `Ask an engine that gives nothing to anybody for half of --overdue-after, while requests wait
		there, with a small request of the router's own. If that is not answered either in the time that --overdue-after gives it, and another
		engine answers one, those that wait there go elsewhere, whole answers too, and it gets none until it answers.`)
	set.Float(&c.Route.LeftOutShare, "left-out-share", d.LeftOutShare, `Most of a model's engines that may be left out for what became of requests, as a part
		of them: what all fail at is not theirs. Prefill engines may all be, unless it is 0: decode engines do all then.`, conf.Between[float64](0, 1))
}

func (c *config) declareHTTP(set *conf.Set) {
	p := &c.Proxy
	set.Group("HTTP")
	p.Limits.Declare(set, httpconf.Limits{
		Listen: "127.0.0.1:8000", MaxBody: 64 << 20, MaxHeader: 64 << 10,
		ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxConnections: 32768, MaxConnectionsIP: 16384, MaxInflight: 16384,
	})
	set.Bool(&c.HTTP2, "http2", true, `Speak HTTP/2 with clients that begin with it, over TLS or without (h2c with prior knowledge).
		Engines are asked by HTTP/1.1.`)
	set.Int(&c.HTTP2Streams, "http2-streams", 250, "Most requests at once on one HTTP/2 connection.", conf.Between(1, 1<<16))
	set.Group("Requests")
	set.Float(&p.InflightShare, "inflight-share", 0.5, `Most of --http-max-inflight that one client may have: the holders of a token, or
		else an address (IPv6: a /64 network). A gateway in front is one client.`, conf.Between(0.001, 1.0))
	set.Bytes(&p.BodyMemory, "body-memory", 1<<30, `Most bytes of the bodies of all requests under way that are held in memory, as
		they arrive.`, conf.Between[int64](1<<10, 1<<45))
	set.Bytes(&p.BodyEach, "body-memory-each", 8<<20, `Most bytes of one body that are held in memory. A larger one is held in a file,
		and so is any while there is no room in memory.`, conf.Between[int64](1<<10, 1<<30))
	set.Bytes(&p.BodyFiles, "body-files", 8<<30, `Most bytes of bodies that are held in files; 0 is without files. Where there is no
		room there either, the bodies that arrive slowest are dropped, and then new ones are refused.`, conf.Between[int64](0, 1<<50))
	set.String(&p.BodyDir, "body-dir", "", "Directory of these files, which have no names. It should not be a file system in memory.",
		conf.ShowDefault("the system's for temporary files"))
	set.Float(&p.BodyShare, "body-share", 0.5, `Most of --body-memory and of --body-files that one client may have: the holders of a
		token, or else an address (IPv6: a /64 network).`, conf.Between(0.001, 1.0))
	set.Int(&p.BusyStatus, "busy-status", 529, "Status of the answer when all workers are busy.", conf.Between(200, 999))
	set.Int(&p.Queue, "queue", 1024, `Requests of a model that may wait while all its workers are busy, or in mode auto where the prompts ahead
		on the best one take longer than a step that a request has to itself; 0 refuses them, or sends them on, at once. Tenants share by their weights; where it is full, the one with most of them by its weight loses its last.`, conf.Between(0, 1<<20))
	set.String(&p.QueueOrder, "queue-order", proxy.OrderShortest, `Who goes first of a tenant's: fcfs, who came first; shortest, by arrival plus a
		tenth of a millisecond for each prompt token that is not cached.`, conf.OneOf(proxy.OrderFCFS, proxy.OrderShortest))
	set.String(&p.QueuePriority, "queue-priority", proxy.PriorityLower, `What priority of a body (from -100 to 100) means among its tenant's: lower
		goes first, as at vLLM, or higher, as at SGLang, each by a second of arrival; ignore.`,
		conf.OneOf(proxy.PriorityLower, proxy.PriorityHigher, proxy.PriorityIgnore))
	set.Duration(&p.QueueAge, "queue-age", 10*time.Second, `A tenant of lower priority gains one with each such time that it waits without
		being served.`, conf.Between(time.Millisecond, time.Hour))
	set.Duration(&p.QueueTimeout, "queue-timeout", 30*time.Second, "Most time to wait.", conf.Between(time.Millisecond, time.Hour))
	set.String(&p.SessionHeader, "session-header", "X-Session-Id", `Header whose value keeps requests on one worker as long as that
		costs no more time than computing elsewhere what the last of them had there; empty for none.`)
	set.List(&c.Sessions, "sessions", []string{proxy.SessionHarness, proxy.SessionPrefix}, `How the session of a request without that header is known: harness, by what Claude Code,
		Codex, OpenCode, Crush and Amp call theirs, in headers and bodies (prompt_cache_key, metadata); prefix, where tokens are not looked up, by the messages that it goes on with, but not with --mode round-robin or random. Empty: not.`)
	set.Duration(&p.SessionLife, "session-lifetime", 10*time.Minute, "How long after its last request.", conf.Between(time.Second, 24*time.Hour))
	set.Int(&p.MaxSessions, "max-sessions", 1<<17, "Most sessions that are remembered.", conf.Between(1, 1<<28))
	set.Int(&p.MaxKept, "max-kept", 1<<17, `Most responses, files and batches that are remembered with the engine that keeps them. For others
		all engines are asked, each for --health-timeout at most.`, conf.Between(1, 1<<28))
	set.Int(&p.MaxAsking, "max-kept-asking", 16, "Most requests that ask all engines at once.", conf.Between(1, 1<<16))
	set.Bytes(&p.Responses, "responses-memory", 64<<20, `Memory for what /v1/responses said, by which the prompt of one that goes on with another by
		previous_response_id is known. Routers that share load tell one another. 0: none, and nothing that was said is kept.`, conf.Between[int64](0, 1<<40))
	set.Bytes(&c.ResponseBytes, "responses-longest", 1<<20, "Most bytes of an answer of which that is kept.", conf.Between[int64](1<<10, 1<<30))
	set.Duration(&p.ResponseLife, "responses-lifetime", time.Hour, "How long after the answer.", conf.Between(time.Second, 30*24*time.Hour))
	set.String(&c.AccessLog, "access-log", "", `File to which a line of JSON is added for each request: id, client, tenant, model, worker, status, times,
		tokens; nothing that was said. It may be renamed at any time. - is the standard output. Empty: none.`)
	set.Bytes(&c.AccessLogBuffer, "access-log-buffer", 1<<20, `Most bytes of it that wait to be written. Lines beyond are dropped and counted.`, conf.Between[int64](1<<10, 1<<30))
	c.Decisions = account.DefaultConfig()
	set.Int(&c.Decisions.Keep, "decisions", c.Decisions.Keep, `How many of the last sampled decisions are kept with their tables of candidates, for
		GET /v1/decisions and kvctl why; so are the slowest and the worst predicted request of each of the last 60 minutes that had any. 0: none.`, conf.Between(0, 1<<20))
	set.Bytes(&c.Decisions.Memory, "decisions-memory", c.Decisions.Memory, "Most bytes that they take.", conf.Between[int64](1<<16, 1<<36))
	set.Int(&c.Decisions.Rows, "decisions-rows", c.Decisions.Rows, `How many rows of such tables are written a second: one for each rank of a decision that is
		sampled.`, conf.Between(1, 1<<24))
	set.Int(&p.MetricLabels, "metric-labels", 200, `Most tenants of models, and workers, that metrics have a label for. Those beyond are "other".`, conf.Between(1, 1<<16))
	set.List(&c.Trust, "trust", nil, `Addresses and networks of callers whose X-Kvatlas-… headers (Worker, Dp-Rank, Overlap-Weight,
		Temperature, Allowed-Workers, Excluded-Workers, Expected-Output, Ttft-Target, Itl-Target, Group) override the choice, and whose X-Kvatlas-Tenant says for whom a request counts. Without any, nobody's do.`)
	set.Bool(&p.WorkerHeader, "worker-header", false, `Name the worker in answers, as X-Kvatlas-Worker and X-Kvatlas-Dp-Rank. Callers that --trust names
		also get X-Kvatlas-Receipt: what the choice went by.`)
	set.Bool(&p.Selection, "selection", true, `Serve /v1/select, /v1/select_and_reserve, /v1/reservations, /v1/loads,
		/v1/potential_loads and /busy_threshold.`)
}

// finish brings what settings cannot be declared as into form, and checks what
// must fit together.
func (c *config) finish() (err error) {
	if c.Route.TierCredits, err = parseCredits(c.Credits); err != nil {
		return err
	}
	if err := c.aims(); err != nil {
		return err
	}
	c.Proxy.SessionHarness, c.Proxy.SessionPrefix = false, false
	for _, how := range c.Sessions {
		switch how {
		case proxy.SessionHarness:
			c.Proxy.SessionHarness = true
		case proxy.SessionPrefix:
			c.Proxy.SessionPrefix = c.Route.WeighsLoad() // else a plain conversation would end the turns
		default:
			return fmt.Errorf("--sessions: %q, give %s, %s, both or none", how, proxy.SessionHarness, proxy.SessionPrefix)
		}
	}
	c.Proxy.Trust = nil
	for _, t := range c.Trust {
		p, perr := netip.ParsePrefix(t)
		if perr != nil {
			a, aerr := netip.ParseAddr(t)
			if aerr != nil {
				return fmt.Errorf("--trust: %q is neither an address nor a network", t)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		c.Proxy.Trust = append(c.Proxy.Trust, p)
	}
	if c.BusyFraction >= 0 {
		c.Route.Busy.DecodeFraction = &c.BusyFraction
	}
	if c.BusyTokens >= 0 {
		c.Route.Busy.PrefillTokens = &c.BusyTokens
	}
	if c.BusyTokensPart >= 0 {
		c.Route.Busy.PrefillFraction = &c.BusyTokensPart
	}
	c.Route.Seed = uint64(c.Seed)
	c.Proxy.AskTimeout = c.HealthTimeout
	c.Proxy.TokenCache, c.Proxy.TokenizeBreaker, c.Proxy.ResponseBytes = c.TokenCacheBytes, c.Route.Breaker, int(c.ResponseBytes)
	c.Proxy.Tokenizers.Options = tokens.Options{TurnCache: int(min(c.TurnCache, math.MaxInt))}
	if c.Proxy.Tokenizers.Dirs, err = tokens.NewDirs(c.Tokenizers, c.Proxy.Tokenizers.Options); err != nil {
		return fmt.Errorf("--tokenizers: %w", err)
	}
	c.Proxy.Tokens = cmp.Or(c.Proxy.Tokens, map[bool]string{true: proxy.TokensEngine, false: proxy.TokensBytes}[c.Events])
	c.Proxy.Indexed = c.index() != fleet.NoIndex
	switch {
	case c.Events && c.Proxy.Tokens == proxy.TokensBytes:
		return errors.New("--tokens bytes: events name blocks of tokens; give --kv-events=false too")
	case len(c.Prefill) > 0 && len(c.Engines) == 0:
		return errors.New("--prefill-engines: nobody goes on with what they compute; give --engines too")
	case len(c.Engines) > 0 && c.Model == "":
		return errors.New("--engines: name the model that they serve with --model")
	case len(c.Replica.Shares.URLs) > 0 && !c.Events:
		return errors.New("--shares: they are not asked with --kv-events=false; give one of both")
	case !c.Replica.HasNATS() && c.index() == fleet.Events && len(c.Replica.Shares.URLs) == 0:
		return errors.New("--nats none: there are no events without a broker; give --kv-events=false or --overlap-weight 0 too")
	}
	if _, _, err := c.names(); err != nil {
		return err
	}
	if err := c.checkAccessLog(); err != nil {
		return err
	}
	if err := c.Picker.Check(); err != nil {
		return err
	}
	if c.Pool.Pool != "" && c.Picker.Listen == "" {
		return errors.New("--picker-pool: there is no picker to have its objectives; give --picker-listen too")
	}
	if c.Proxy.PassHeaders, err = proxy.PassHeaders(c.Proxy.PassHeaders); err != nil {
		return fmt.Errorf("--pass-headers: %w", err)
	}
	if err := proxy.CheckOrigins(c.Proxy.Origins); err != nil {
		return fmt.Errorf("--allowed-origins: %w", err)
	}
	if err := proxy.CheckRoutes(c.Proxy.Routes); err != nil {
		return fmt.Errorf("--inference-routes: %w", err)
	}
	c.Replica.NATS.Name, c.Replica.Fed, c.Replica.Static = "kvrouter", c.index() != fleet.Events, c.static()
	for i := range c.Replica.Static {
		if err := c.Replica.Static[i].CheckHTTP(); err != nil {
			return fmt.Errorf("--engines, --prefill-engines: %w", err)
		}
	}
	return c.Route.Check()
}

// index returns what the routers know of caches.
func (c *config) index() fleet.Kind { return fleet.KindOf(&c.Route, c.Events) }

// static returns the workers of --engines and --prefill-engines.
func (c *config) static() []registry.Worker {
	var list []registry.Worker
	add := func(urls []string, role registry.Role) {
		for _, url := range urls {
			list = append(list, registry.Worker{
				ID: uint64(len(list)), Model: c.Model, BlockSize: uint32(c.BlockSize), Transport: registry.NoEvents, Role: role,
				Ranks: []uint32{0}, Endpoints: registry.Endpoints{HTTP: url},
			})
		}
	}
	if len(c.Prefill) == 0 {
		add(c.Engines, registry.Aggregated)
		return list
	}
	add(c.Engines, registry.Decode)
	add(c.Prefill, registry.Prefill)
	return list
}

func parseCredits(list []string) (credits [event.NumTiers]float64, err error) {
	if len(list) != len(credits) {
		return credits, fmt.Errorf("--tier-credits: %d numbers, give %d: device, host, disk, external", len(list), len(credits))
	}
	for i, text := range list {
		if _, err := fmt.Sscanf(text, "%g", &credits[i]); err != nil || !(credits[i] >= 0 && credits[i] <= 1) {
			return credits, fmt.Errorf("--tier-credits: %q is no number from 0 to 1", text)
		}
	}
	return credits, nil
}
