package tokens

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/modelfiles"
	"github.com/kvatlas/kvatlas/internal/pace"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// Question is what an engine is asked.
type Question struct {
	Space         event.Space
	Worker        uint64
	Is            any // its engine: no other one is asked in its place
	Form          Form
	Body          []byte
	Authorization string // of the client whose request it is; "" for the router's own
}

// ErrSilent is wrapped by the error of an Ask where the engine does not say what it makes of
// such a request, and never will: it has no such route, or refuses it.
var ErrSilent = errors.New("the engine does not say its tokens")

// Engine is one that serves a model.
type Engine struct {
	Worker uint64
	// Is changes with the engine behind the worker's id.
	Is any
	// Software is what the engine says that it is: vllm, sglang, …; "": not known.
	Software string
	// Files are what its registration names; zero: none.
	Files Files
}

// Files names a model's files.
type Files struct {
	ID     string // equal for equal content
	Engine string // whose rules of requests hold, where the files do not say; "": vLLM's
	From   string // where they are from, for people
	Open   func(ctx context.Context, engine string) (*Model, error)
}

// key is equal for files by which the same model is loaded.
func (f *Files) key() string {
	if f.ID == "" {
		return ""
	}
	return f.ID + f.Engine
}

// Config says where a Source has files from, and how they are compared.
type Config struct {
	Dirs *Dirs // nil: none
	// Fetch fetches files that registrations name; nil: those are not used.
	Fetch   func(ctx context.Context, list []modelfiles.File) (modelfiles.Set, error)
	Options Options // of models whose files are fetched
	// Most bounds the models whose files are in memory at once; 0: 32.
	Most int
	// Ask asks an engine for the tokens of a request.
	Ask func(ctx context.Context, q Question) ([]uint32, error)
	// AskText asks an engine for the text of ids (Detokenize); nil: none is.
	AskText func(ctx context.Context, q Question) (string, error)
	// Software asks an engine what it is (Engine.Software); nil: none is asked.
	Software func(ctx context.Context, q Question) string
	// Sample is the part of requests that are compared, at most Rate a second of all models.
	Sample float64
	Rate   int
	Within time.Duration // for one comparison; 0: 10 s
	Log    *slog.Logger
	// Metrics are written with them; nil: to nobody.
	Metrics *obs.Metrics
}

// Source has the tokens of all models. Its methods are safe for concurrent use; Run is for
// one goroutine.
type Source struct {
	cfg     Config
	log     *slog.Logger
	limit   *obs.Limited
	samples chan sample
	now     func() time.Time

	asked                           map[Reason]*metrics.Counter
	made, agreed, differed, unknown *metrics.Counter

	quota struct {
		sync.Mutex
		of pace.Quota
	}
	mu     sync.Mutex // of who changes of
	of     atomic.Pointer[map[event.Space]*Subject]
	loaded map[string]*Model   // by Files.key, of those in use; Run's
	loads  map[string]*loading // those on their way; Run's
	woken  chan struct{}       // one of them is there
}

// NewSource returns a Source.
func NewSource(cfg Config) *Source {
	s := &Source{cfg: cfg, log: cfg.Log, samples: make(chan sample, 16), now: time.Now, loaded: map[string]*Model{}, loads: map[string]*loading{}, woken: make(chan struct{}, 1)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.cfg.Within == 0 {
		s.cfg.Within = 10 * time.Second
	}
	s.limit = obs.NewLimited(s.log, time.Minute, nil)
	if s.cfg.Most == 0 {
		s.cfg.Most = 32
	}
	s.of.Store(&map[event.Space]*Subject{})
	s.observe(cfg.Metrics)
	return s
}

// Registered returns the files that a registration names.
func (s *Source) Registered(list []modelfiles.File) Files {
	if len(list) == 0 || s.cfg.Fetch == nil {
		return Files{}
	}
	return Files{ID: modelfiles.ID(list), From: "workers", Open: func(ctx context.Context, engine string) (*Model, error) {
		set, err := s.cfg.Fetch(ctx, list)
		if err != nil {
			return nil, err
		}
		o := s.cfg.Options
		o.Engine = engine
		return Load(set, o)
	}}
}

func (s *Source) counted(err error) error {
	var ask *AskError
	if errors.As(err, &ask) {
		s.asked[ask.Reason].Inc()
	}
	return err
}

// Of returns the space's Subject, made if absent.
func (s *Source) Of(sp event.Space) *Subject {
	if x := (*s.of.Load())[sp]; x != nil {
		return x
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was := *s.of.Load()
	if x := was[sp]; x != nil {
		return x
	}
	all := make(map[event.Space]*Subject, len(was)+1)
	for k, v := range was {
		all[k] = v
	}
	x := &Subject{source: s, space: sp, workers: map[uint64]*worker{}}
	all[sp] = x
	s.of.Store(&all)
	return x
}

func (s *Source) mayCompare(now time.Time) bool {
	s.quota.Lock()
	defer s.quota.Unlock()
	return s.quota.of.Take(now, s.cfg.Rate, time.Second) == 0
}

// Status returns what is known of each model, in order.
func (s *Source) Status() (list []Status) {
	for _, x := range *s.of.Load() {
		list = append(list, x.Status())
	}
	slices.SortFunc(list, func(a, b Status) int {
		return cmp.Or(strings.Compare(a.Model, b.Model), cmp.Compare(a.BlockSize, b.BlockSize), strings.Compare(a.Group, b.Group))
	})
	return list
}

// Retry forgets what was shown of a model's files, of all models if it is "", so that they are
// compared anew. It returns how many there are.
func (s *Source) Retry(model string) (n int) {
	for sp, x := range *s.of.Load() {
		if model == "" || sp.Model == model {
			n++
			x.mu.Lock()
			x.renewProofLocked()
			x.mu.Unlock()
		}
	}
	return n
}

// lookEvery is how often it is looked at who is there and which files are.
const lookEvery = time.Second

// Run keeps the models as fleet says they are, and compares, until ctx ends.
func (s *Source) Run(ctx context.Context, fleet func() map[event.Space][]Engine) {
	var all sync.WaitGroup
	defer all.Wait()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		s.look(ctx, fleet(), &all)
		for looked := true; looked; {
			select {
			case <-ctx.Done():
				return
			case x := <-s.samples: // one of a model
				all.Go(func() {
					defer x.of.sampling.Store(false)
					s.judge(ctx, x)
				})
			case <-s.woken:
				looked = false
			case <-tick.C:
				looked = false
			}
		}
	}
}

// judge compares a sample with one engine of the model. What a client says shows only where an
// engine differs; one that has not been seen to agree, as it says nothing to the router itself,
// is asked the questions for that client, too.
func (s *Source) judge(ctx context.Context, x sample) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Within)
	defer cancel()
	e, agreed := x.of.anyone(x.form.Kind())
	if e == nil {
		return
	}
	_, same, err := x.of.compare(ctx, x.use, e, Probe{x.form, x.body}, x.authorization)
	if err != nil || !same || agreed { // what differs is counted
		return
	}
	var body struct{ Model string }
	if json.Unmarshal(x.body, &body) != nil {
		return
	}
	_ = x.of.question(ctx, x.use, e, cmp.Or(body.Model, x.of.space.Model), x.authorization) // counted
}

// anyone returns one of the model's engines, and whether it was seen to agree in the kind; nil
// if there is none.
func (s *Subject) anyone(k Kind) (e *Engine, agreed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.workers) == 0 {
		return nil, false
	}
	n := rand.IntN(len(s.workers))
	for id, w := range s.workers {
		if n == 0 {
			return &Engine{Worker: id, Is: w.engine}, s.proof.Agrees(id, k)
		}
		n--
	}
	return nil, false
}
