package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v3"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/router/selection"
	"github.com/kvatlas/kvatlas/internal/shares"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/route/approx"
	"github.com/kvatlas/kvatlas/route/predict"
	"github.com/kvatlas/kvatlas/shard"
)

// ErrTooManyModels is wrapped by the error about a worker of one model more than
// Config.MaxModels.
var ErrTooManyModels = errors.New("too many models: raise the limit, or check what workers register")

// Kind says what the routers know of caches.
type Kind uint8

// The kinds of index.
const (
	NoIndex     Kind = iota // nothing: every prompt counts as not cached
	Events                  // what workers publish
	Approximate             // the router's own choices
)

// KindOf returns what routers with these settings know, where events are read or
// not: nothing where it would have no weight.
func KindOf(s *route.Settings, events bool) Kind {
	switch {
	case !s.WeighsCache():
		return NoIndex
	case events:
		return Events
	}
	return Approximate
}

// Config holds what a Fleet is made with.
type Config struct {
	ID     uint64 // of this router; see route.Config
	Route  route.Settings
	Index  Kind
	Set    *shard.Set     // of Events: where the spaces are
	Shares *shares.Shares // of Events: asked in place of Set, if not nil
	Approx approx.Config  // of Approximate
	// Loras are names of adapters, and the model that each belongs to, beside
	// those that engines name themselves.
	Loras map[string]string
	// Aliases are names that requests may give in place of a model's or an adapter's:
	// engines and hashes get that one.
	Aliases map[string]string
	// Transfer is how prompts get from prefill to decode workers that do not say
	// it themselves; "" is registry.TransferVLLM.
	Transfer registry.KVTransfer
	// PairLosses is how many prompts in a row must not come from a prefill worker to another one for the two not to be
	// paired for PairRest; 0: they always are.
	PairLosses int
	PairRest   time.Duration
	MaxModels  int // 0 is 1024
	// Addressless lets workers be chosen that do not say where their engines
	// listen: whoever asks knows it.
	Addressless bool
	// Stale returns the ranks of which the index lacks events; nil: none are known.
	Stale        func() map[event.Space]map[shard.RankID]bool
	Contradicted func(sp event.Space, id shard.RankID) // told of ranks whose engines find other blocks than the index has, if not nil
	Decisions    *account.Log                          // keeps some of the routers' choices; nil: none
	Prompts      *account.Prompts                      // keeps the blocks of those choices' prompts; nil: none
	// Unhealthy is how many health checks in a row must fail for an engine to get no
	// requests; 0 is 3.
	Unhealthy int
	// Credentials are what engines are shown of this program; nil: nothing.
	Credentials *secure.Engines
	Log         *slog.Logger // nil: slog.Default()
}

// Model is one index space, its router and its engines.
type Model struct {
	selection.Model
	Check *predict.Check // of the engines' reports about what was cached
	Cache *approx.Cache  // nil unless Config.Index is Approximate

	link    io.Closer                          // nil without others
	engines atomic.Pointer[map[uint64]*Engine] // replaced as a whole: a map gives a random one first, which xsync's does not
	loras   names                              // adapters
	served  names                              // that engines know the model by
	owners  names                              // as engines list the model
	eagle   atomic.Bool                        // a worker says that its hashes are those of EAGLE
	hybrid  atomic.Bool                        // a worker says that its model has caches that are not indexed
	split   atomic.Bool                        // there are prefill workers, and the policy chooses them
	pairs   pairs                              // those that are not made
}

// Split reports whether prompts may be computed on one worker and gone on with on
// another.
func (m *Model) Split() bool { return m.split.Load() }

// Engine returns the worker's engine, or nil.
func (m *Model) Engine(worker uint64) *Engine { return (*m.engines.Load())[worker] }

// Engines returns all engines by worker. The caller must not change the map.
func (m *Model) Engines() map[uint64]*Engine { return *m.engines.Load() }

// Fleet is the models. Its methods are safe for concurrent use.
type Fleet struct {
	cfg  Config
	log  *slog.Logger
	list atomic.Pointer[[]*Model] // sorted by space
	came chan struct{}            // see Came

	mu   sync.Mutex // of all changes
	sync Sync       // nil until Link
}

// New returns a Fleet without models.
func New(cfg Config) *Fleet {
	if cfg.MaxModels <= 0 {
		cfg.MaxModels = 1024
	}
	if cfg.Unhealthy <= 0 {
		cfg.Unhealthy = 3
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	f := &Fleet{cfg: cfg, log: cfg.Log, came: make(chan struct{}, 1)}
	f.list.Store(&[]*Model{})
	return f
}

// Models returns the models, sorted by space. The caller must not change the
// slice.
func (f *Fleet) Models() []*Model { return *f.list.Load() }

// Selectable returns the models as package selection wants them.
func (f *Fleet) Selectable() []*selection.Model {
	list := f.Models()
	models := make([]*selection.Model, len(list))
	for i, m := range list {
		models[i] = &m.Model
	}
	return models
}

// Lookup returns the model that a request names, and the LoRA adapter if the
// name is one. Without the group that is asked for it returns nil; an empty
// group also finds the only one that there is.
func (f *Fleet) Lookup(name, group string) (m *Model, lora string) {
	name, of, ways := f.meaning(name)
	for _, w := range ways {
		if m = f.find(group, func(m *Model) bool { return w.has(m, of) }); m != nil {
			if w.adapter {
				lora = name
			}
			return m, lora
		}
	}
	return nil, name
}

func (f *Fleet) find(group string, want func(m *Model) bool) *Model {
	var only *Model
	n := 0
	for _, m := range f.Models() {
		if !want(m) {
			continue
		}
		if m.Group == group {
			return m
		}
		only = m
		n++
	}
	if group == "" && n == 1 {
		return only
	}
	return nil
}

// Names returns the names that requests may give as their model, sorted.
func (f *Fleet) Names() []string {
	names := map[string]bool{}
	for _, m := range f.Models() {
		names[m.Space.Model] = true
		for _, more := range [...]*xsync.MapOf[string, []uint64]{m.loras.at, m.served.at} {
			for name := range more.Range {
				names[name] = true
			}
		}
	}
	for _, more := range [...]map[string]string{f.cfg.Loras, f.cfg.Aliases} {
		for name, of := range more {
			if names[of] {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// SetWorker adds a worker or changes what is known of it. Drained workers get no
// new requests. The error wraps route.ErrSettings, ErrTooManyModels, or is the
// index's.
func (f *Fleet) SetWorker(w registry.Worker, drained bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, err := f.open(w.Space())
	if err != nil {
		return fmt.Errorf("worker %d of %s: %w", w.ID, w.Model, err)
	}
	if w.Eagle() {
		m.eagle.Store(true)
	}
	if w.Hybrid {
		m.hybrid.Store(true)
	}
	was := m.Engine(w.ID)
	e, err := f.engine(m, &w)
	if err != nil {
		return err
	}
	first, ranks := uint32(0), uint32(1)
	if len(w.Ranks) > 0 {
		first = slices.Min(w.Ranks)
		ranks = min(slices.Max(w.Ranks)-first, math.MaxUint32-1) + 1 // too many are refused, not none
	}
	role := route.Aggregated
	switch w.Role {
	case registry.Prefill:
		role = route.Prefill
	case registry.Decode:
		role = route.Decode
	}
	e.first.Store(first)
	e.ranks.Store(ranks)
	e.files.Store(&w.Tokenizer)
	if e.life.Swap(w.Incarnation) != w.Incarnation {
		e.owner.Store(nil)
		e.software.Store(nil) // it may be of another release now, and started otherwise
		e.length.Store(0)
		e.asked.Store(false)
		f.forgetPairs(m, w.ID)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	err = m.Router.SetWorker(route.Worker{
		ID: w.ID, FirstRank: first, Ranks: ranks, Role: role, CPU: w.CPU, Pooled: len(w.Pools) > 0, Peer: e.fetches(),
		TotalBlocks: int(min(w.TotalBlocks, 1<<31)), MaxBatchedTokens: int(min(w.MaxBatchedTokens, 1<<31)),
		Draining: drained, Dead: e.failed, Addressless: e.URL == "" && !f.cfg.Addressless,
	})
	if err != nil {
		return err
	}
	if e != was {
		engines := maps.Clone(m.Engines())
		engines[w.ID] = e
		f.replace(m, engines)
		f.arrange(m)
		if was != nil {
			f.forgetPairs(m, w.ID)
			m.learn(was, listed{})
			m.Router.Renew(w.ID) // what requests told was of another address
		}
		if w.Lora != "" {
			m.learn(e, listed{adapters: []string{w.Lora}})
		}
	}
	f.tellOf(e)
	return nil
}

// engine returns the worker's engine: the one that there is, unless it is reached
// in another way now.
func (f *Fleet) engine(m *Model, w *registry.Worker) (*Engine, error) {
	text := strings.TrimRight(w.Endpoints.HTTP, "/")
	base, err := url.Parse(text)
	if err != nil || base.User != nil || text != "" && (base.Host == "" || base.Scheme != "http" && base.Scheme != "https") {
		return nil, fmt.Errorf("%w: worker %d: the engine's address %.200q is no http:// or https:// URL without a password", route.ErrSettings, w.ID, conf.HideCredentials(text))
	}
	e := &Engine{
		who:         secure.EngineID{Worker: w.ID, Name: w.Name, Model: w.Model, Group: w.Group, Host: base.Hostname(), Credential: w.Credential},
		credentials: f.cfg.Credentials,
		ID:          w.ID, URL: text, Base: base, limit: f.cfg.Unhealthy, model: m, Prefill: w.Role == registry.Prefill,
		Stated:    w.KVTransfer,
		Transfer:  cmp.Or(w.KVTransfer, f.cfg.Transfer, registry.TransferVLLM),
		Bootstrap: cmp.Or(w.Endpoints.Bootstrap, net.JoinHostPort(base.Hostname(), sglangBootstrapPort)),
		Peer:      w.Endpoints.Peer,
	}
	if is := m.Engine(w.ID); is != nil && is.URL == e.URL && is.Prefill == e.Prefill && is.Transfer == e.Transfer && is.Stated == e.Stated && is.Bootstrap == e.Bootstrap && is.Peer == e.Peer && is.who == e.who {
		return is, nil
	}
	if !f.cfg.Credentials.Show(http.Header{}, &e.who) {
		f.log.Warn("an engine asks for a credential that there is not, or not for its host: it is shown none",
			"worker", w.ID, "model", w.Model, "credential", w.Credential, "host", e.who.Host)
	}
	return e, nil
}

// sglangBootstrapPort is the default of its --disaggregation-bootstrap-port.
const sglangBootstrapPort = "8998"

// replace makes engines those of the model. f.mu is held.
func (f *Fleet) replace(m *Model, engines map[uint64]*Engine) {
	split := false
	for _, e := range engines {
		split = split || e.Prefill
	}
	m.split.Store(split && f.cfg.Route.Mode != "direct")
	m.engines.Store(&engines)
}

// RemoveWorker forgets a worker, and ends its bookings.
func (f *Fleet) RemoveWorker(k registry.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.Models() {
		if m.Space == k.Space {
			if e := m.Engine(k.Worker); e != nil {
				m.learn(e, listed{})
			}
			engines := maps.Clone(m.Engines())
			delete(engines, k.Worker)
			f.replace(m, engines)
			m.Router.RemoveWorker(k.Worker)
			f.forgetPairs(m, k.Worker)
			f.arrange(m)
			m.Check.Forget(k.Worker)
			return
		}
	}
}

// Serving returns how many workers may be given requests, of all models.
func (f *Fleet) Serving() (n int) {
	for _, m := range f.Models() {
		for _, w := range m.Router.Workers() {
			if !w.Draining && !w.Dead && !w.Addressless {
				n++
			}
		}
	}
	return n
}

// Open returns the space's model, made if absent. The error wraps
// ErrTooManyModels or is the index's.
func (f *Fleet) Open(sp event.Space) (*Model, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open(sp)
}

// open returns the space's model, made if absent. f.mu is held.
func (f *Fleet) open(sp event.Space) (*Model, error) {
	list := f.Models()
	var busy route.Thresholds // a model's are of all its spaces, those too that come after they were set
	for _, m := range list {
		if m.Space == sp {
			return m, nil
		}
		if m.Space.Model == sp.Model {
			busy = m.Router.Thresholds()
		}
	}
	if len(list) >= f.cfg.MaxModels {
		return nil, ErrTooManyModels
	}
	m := &Model{Check: predict.New(predict.Config{BlockSize: int(sp.BlockSize)}), loras: newNames(), served: newNames(), owners: newNames()}
	m.engines.Store(&map[uint64]*Engine{})
	cfg := route.Config{BlockSize: int(sp.BlockSize), ID: f.cfg.ID, Settings: f.cfg.Route, Decisions: f.cfg.Decisions, Prompts: f.cfg.Prompts, Space: sp, Log: f.log}
	switch {
	case f.cfg.Index == Events && f.cfg.Shares != nil:
		cfg.Shares, cfg.Eagle, cfg.Estimated = f.cfg.Shares.Space(sp), m.eagle.Load, m.hybrid.Load
	case f.cfg.Index == Approximate:
		var err error
		if m.Cache, err = approx.New(f.cfg.Approx); err != nil {
			return nil, err
		}
		cfg.Guesses = m.Cache
	case f.cfg.Index == Events:
		space, err := f.cfg.Set.Open(sp)
		if err != nil {
			return nil, err
		}
		cfg.Index, cfg.Eagle, cfg.Estimated = space, space.Eagle, space.Hybrid
	}
	if tell := f.cfg.Contradicted; tell != nil && f.cfg.Index == Events && f.cfg.Shares == nil {
		cfg.Doubted = func(id shard.RankID) { tell(sp, id) }
	}
	cfg.Settings.Busy = cfg.Settings.Busy.Merge(busy)
	router, err := route.New(cfg)
	if err != nil {
		return nil, err
	}
	m.Model = selection.Model{Space: sp, Router: router, Endpoint: func(w uint64) string {
		if e := m.Engine(w); e != nil {
			return e.URL
		}
		return ""
	}}
	if f.sync != nil {
		if m.link, err = f.sync(sp, router); err != nil {
			return nil, err
		}
	}
	list = append(slices.Clone(list), m)
	slices.SortFunc(list, func(a, b *Model) int {
		return cmp.Or(strings.Compare(a.Space.Model, b.Space.Model), cmp.Compare(a.BlockSize, b.BlockSize), strings.Compare(a.Group, b.Group))
	})
	f.list.Store(&list)
	return m, nil
}

// Expire ends bookings whose lease is over; call it now and then.
func (f *Fleet) Expire() {
	for _, m := range f.Models() {
		f.changePairs(m, func(map[pair]losses, time.Time) {}) // it is later
		m.Router.Expire()
		if m.Cache != nil {
			m.Cache.Expire()
		}
	}
}

// discountStale tells the routers of which ranks the index lacks events, and, where shares
// are asked, how many blocks each rank holds.
func (f *Fleet) discountStale() {
	if f.cfg.Stale == nil || f.cfg.Index != Events {
		return
	}
	stale := f.cfg.Stale()
	for _, m := range f.Models() {
		m.Router.SetStale(stale[m.Space])
		if f.cfg.Shares != nil {
			m.Router.SetHeld(f.cfg.Shares.Held()[m.Space])
		}
	}
}

// Close ends the links to other routers.
func (f *Fleet) Close() (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.Models() {
		if m.link != nil {
			err = errors.Join(err, m.link.Close())
		}
	}
	return err
}
