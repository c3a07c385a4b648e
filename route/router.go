package route

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/spans"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// Index tells which ranks hold a prompt's prefix. A *shard.Space is one.
type Index interface {
	// Find puts into r what every rank holds, given the local hashes of the
	// prompt's complete blocks.
	Find(local []uint64, r *shard.Result)
	// EachMember calls f for every rank that holds blocks.
	EachMember(f func(k shard.Member))
}

// Shares is an index that other processes have, each of a part of the workers: it asks
// them all at once, and bounds the time itself. A *shares.Space is one.
type Shares interface {
	// Find calls each for every rank that holds the first block, as Index.Find has it.
	// unknown reports whether nobody has answered for a worker; nil: all have.
	Find(ctx context.Context, local []uint64, each func(id shard.RankID, depth [event.NumTiers]uint32)) (unknown func(worker uint64) bool)
}

// Journal is told every change to the Router's own bookings, in order, under
// its lock: Record must neither block nor call the Router. The change's Blocks
// live until Record returns.
type Journal interface {
	Record(c load.Change)
}

// Config is what a Router is made with. BlockSize must be set.
type Config struct {
	// BlockSize is the tokens of a block, as in the space of Index.
	BlockSize int
	// Index may be nil if nothing weighs what is cached; prompts then count as
	// not cached anywhere.
	Index Index
	// Eagle reports whether the tokens of prompts are to be looked up with the hashes of
	// blockhash.Options.Eagle, too; nil: they are not. It is asked for each prompt.
	Eagle func() bool
	// Estimated reports whether what ranks have cached is the most that can be reused, as
	// the model has caches that are not indexed (shard.Space.Hybrid): then it counts for
	// the part that engines report of it; nil: it is not. It is asked for each choice.
	Estimated func() bool
	// Doubted, if not nil, is told of a rank of which the index has not what its engine finds, and
	// nothing explains it: somebody is to read anew what it holds. No lock is held.
	Doubted func(id shard.RankID)
	// Shares are asked in place of Index, if not nil. What each rank holds in all is to
	// be told with SetHeld then.
	Shares Shares
	// Guesses is asked in place of both, if not nil.
	Guesses  Guesses
	Settings Settings
	// Policy is used in place of that of Settings.Mode, if not nil.
	Policy Policy
	// ID names the router to its replicas; see Apply. It must differ between
	// them, and between runs of one.
	ID uint64
	// Decisions keeps some of the choices that are booked, with all that the policy saw;
	// nil keeps none. They name Space as theirs.
	Decisions *account.Log
	Space     event.Space // its model's are of Settings.Models
	// Prompts keeps the blocks of those choices' prompts; nil keeps none.
	Prompts *account.Prompts
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log gets, at level debug, the formula of every rank for every choice; nil
	// for none.
	Log *slog.Logger
}

// Router chooses ranks and keeps count of what it has placed. Its methods are
// safe for concurrent use.
type Router struct {
	cfg     Config
	scratch sync.Pool // of *scratch

	mu         sync.Mutex // guards all below
	settings   Settings
	policy     Policy
	observer   Observer  // the policy, if it is one of the caller's own that learns
	peers      int       // workers that are Peers
	apart      IsApart   // nil: every prefill worker may be paired with every other
	times      *auto     // predicts, whatever the policy; the policy itself if that does
	chance     *rand.PCG // of weigh.Rand
	table      *load.Table
	journal    Journal
	workers    map[uint64]*workerState
	attempts   map[load.Key]*attempt // own bookings
	spare      []*attempt            // of ended ones, for their memory
	wellUntil  time.Time             // see allWell
	allProven  bool                  // but for prefill workers, and those that came since; see Trials
	said       tally                 // by all workers
	ends       ends                  // of all workers' answers
	unseen     unseen
	totals     account.Totals
	correction correction
	pools      correction // of what pools are said to have, how much is found
	members    []*member  // by rising slot
	others     []uint64   // other routers, rising
	bids       bids
	assigned   bool      // members say which are theirs
	bySlot     []*member // nil where the slot is no member's
	passes
	numbers []numbered
	mark    uint64 // of the last choice that marked workers
	stats   Stats

	// Of the choice being made.
	depth   [][event.NumTiers]uint32 // by slot; zero between choices
	found   []uint64                 // a bit for each slot where it is not zero
	deepest uint32                   // blocks of the prompt that a rank has, whoever may be chosen
	fullest uint32                   // the first slot that has most of the prompt on its device: so many blocks
	most    uint32
	missed  reach    // what those left out had
	active  []uint32 // by slot
	held    []int    // by slot, if counted; see holds
	counted bool
	takers  []uint64 // workers that may take the prompt from a prefill worker
	weigh   Weighing

	noteHeld    func(shard.Member)
	noteGuessed func(id shard.RankID, blocks int)
}

// Stats counts what a Router did since it was made.
type Stats struct {
	Chosen     uint64 // choices, booked or not
	Booked     uint64 // bookings
	Overloaded uint64 // requests refused because all workers were busy
	Later      uint64 // choices put off; see Options.Patient
	Settled    uint64 // of these, for a moment only; see Answer.Settle
	NoWorker   uint64 // requests that no worker may serve
	Duplicate  uint64 // requests refused for the id of a live booking
	DecodeOnly uint64 // requests of BestPair without a prefill worker to go to
	Expired    uint64 // bookings whose lease ended
	Dropped    uint64 // bookings whose worker went away
	Unknown    uint64 // calls for a request that has no live booking
	Live       int    // bookings now, those of other routers too

	Contradicted uint64 // reports of engines that are not what the index has, which nothing explains
	Doubted      uint64 // times that a rank was to be read anew for that

	// Reports of engines that were to fetch a prefix: it came, or some of it did not.
	Pulled, NotPulled uint64
}

// New returns a Router without workers. The error wraps ErrSettings or blockhash.ErrBlockSize.
func New(cfg Config) (*Router, error) {
	if err := blockhash.CheckBlockSize(cfg.BlockSize); err != nil {
		return nil, fmt.Errorf("making a router: %w", err)
	}
	if err := cfg.Settings.Check(); err != nil {
		return nil, fmt.Errorf("making a router: %w", err)
	}
	cfg.Settings = cfg.Settings.Of(cfg.Space.Model)
	cfg.Settings.Busy = Thresholds{}.Merge(cfg.Settings.Busy)
	policy := cfg.Policy
	if policy == nil {
		var err error
		if policy, err = newPolicy(cfg.Settings.Mode); err != nil {
			return nil, fmt.Errorf("making a router: %w", err)
		}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	r := &Router{
		cfg:      cfg,
		settings: cfg.Settings,
		policy:   policy,
		chance:   rand.NewPCG(cfg.Settings.Seed, 0),
		table: load.New(load.Config{
			BlockSize:   cfg.BlockSize,
			AssumeReuse: cfg.Settings.AssumeKVReuse,
			TrackOutput: cfg.Settings.TrackOutputBlocks,
			OutputDecay: cfg.Settings.OutputDecay,
		}),
		workers: make(map[uint64]*workerState), attempts: make(map[load.Key]*attempt), takers: []uint64{},
		bids: bids{id: cfg.ID},
	}
	var ok bool
	if r.times, ok = policy.(*auto); !ok {
		r.times = newAuto()
		r.observer, _ = policy.(Observer)
	}
	r.noteHeld = r.noteHeldOf
	r.noteGuessed = r.noteGuessedOf
	r.scratch.New = func() any { return newScratch() }
	r.weigh = Weighing{BlockSize: cfg.BlockSize, Settings: &r.settings, Rand: rand.New(r.chance), holds: r.holds}
	return r, nil
}

// SetJournal makes j be told of changes from now on; nil for nobody.
func (r *Router) SetJournal(j Journal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.journal = j
}

func (r *Router) record(c load.Change) {
	if r.journal != nil {
		r.journal.Record(c)
	}
}

// Stats returns what the Router did.
func (r *Router) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Live = r.table.Len()
	return r.stats
}

// Prompt is what of a request is looked at. Either Tokens or Local is given.
type Prompt struct {
	Tokens []uint32
	// Hash says what goes into the hashes of Tokens besides them.
	Hash blockhash.Options
	// Local are the local hashes of the prompt's complete blocks, from the
	// first on.
	Local []uint64
	// Length is the prompt's tokens where Local is given; 0 for complete
	// blocks only.
	Length int
	// Rest is the tokens, about, of further prompts that the request has: they are not
	// looked up, and count as load, also in blocks.
	Rest int
	// Guessed is set if Length is an estimate and the tokens are not known: it counts
	// as load, also in blocks, and teaches nothing.
	Guessed bool
}

// Size returns how many tokens all of it has, about.
func (p *Prompt) Size() int { return min(max(len(p.Tokens), p.Length), load.MaxCount) + p.rest() }

// Stage says what the chosen worker is to do.
type Stage uint8

// The stages.
const (
	// Whole is all of a request, on aggregated and decode workers.
	Whole Stage = iota
	// PrefillStage computes the prompt, on prefill workers. It occupies no
	// decode blocks.
	PrefillStage
	// DecodeStage generates from a prompt that is computed elsewhere, on
	// aggregated and decode workers. It brings no prompt tokens to compute.
	DecodeStage
)

// String returns the stage's name in answers.
func (s Stage) String() string {
	return [...]string{"aggregated", "prefill", "decode", "invalid"}[min(s, DecodeStage+1)]
}

// MaxRequestID is the most bytes of a request id.
const MaxRequestID = 512

// Options belong to one request. The zero value asks for the best worker
// without booking it.
type Options struct {
	// RequestID books the request under that id, until Free. It must differ
	// from those of the router's live requests. Empty books nothing.
	RequestID string
	// Name is how the caller calls the request, for whoever asks why its worker was
	// chosen; empty for nothing.
	Name string
	// Weight and Temperature override the settings.
	Weight, Temperature *float64
	// Allowed, if not nil, are the only workers to choose from. Excluded are
	// left out.
	Allowed, Excluded []uint64
	// Ranks, if not nil, are the only ones to choose from; whoever only computes the prompt
	// may be another.
	Ranks map[shard.RankID]bool
	// Worker and DPRank pin the request.
	Worker *uint64
	DPRank *uint32
	Stage  Stage
	// Session, if not nil, is where the last request of the same session went. That
	// rank is chosen as long as it costs no more than another plus what the session
	// should find cached there; where that is looked up, if it costs less than another.
	Session *Session
	// Watched is set by callers who tell when the first token came, of failures, and of the end (Succeeded, Free):
	// a worker that gives nothing in time, or breaks its answers off, is left out. Whole is set if the answer
	// does not come as a stream.
	Watched, Whole bool
	// Client tells who asks from others; see Router.Cut. 0 is another one each time.
	Client uint64
	// Trial, if not 0, is set by callers who can ask no other worker if this one fails, and try workers themselves: a
	// worker that is on trial is left out, one that has proved nothing for so long at most. See Trials.
	Trial time.Duration
	// Question is set of what a worker is asked with: see Router.Ask. Pull is set by callers who tell the engine what
	// Answer.Pull says.
	Question, Pull bool
	avoid          []uint64 // nothing is fetched from these
	// Of a pair, where some are apart: takers, if not nil, are who may go on with the request, and from is who computes its prompt.
	takers []uint64
	from   *uint64
	// Patient is set by callers who ask again on ErrLater, which mode auto gives, whenever a first token has come
	// or a request has ended, the shortest prompts first: the Answer beside it has what of
	// the prompt is new to the rank that is best so far. With Answer.Settle they ask again when that is over, with Settled,
	// and are not put off like that once more. Waiting is how many others wait.
	Patient bool
	Settled bool
	Waiting int
	// FirstToken and Token are the request's own Targets, each in place of that of the settings if
	// not nil; 0 is none. Waited is how long ago the request came.
	FirstToken, Token *time.Duration
	Waited            time.Duration
	// ExpectedOutput is how many tokens the request should generate, and MostOutput how many it may
	// at most; 0 if unknown.
	ExpectedOutput, MostOutput int
	// Explain puts every rank's numbers into the answer.
	Explain bool
}

// Answer is a choice.
type Answer struct {
	// Candidate is the chosen rank, with its numbers as the policy saw them.
	Candidate
	// Blocks is how many complete blocks the prompt has.
	Blocks int
	// Overdue is how long a request that is Watched may wait for its first token
	// before its worker is judged by it; 0 is for ever. Quiet is for how long until its worker may be to be asked: see Router.Ask.
	Overdue, Quiet time.Duration
	Trial
	// Account is what of the prompt was to be found cached.
	Account account.Choice
	// First is when the first token is expected, from now on, if the choice is booked.
	First time.Duration
	// Settle, above 0, beside ErrLater: ask again after this time, and not before, as other routers choose just now.
	Settle time.Duration
	// Decision is under what Config.Decisions will have it with its table; empty if it
	// was not sampled.
	Decision string
	// Ranks, if asked for, has every rank: those that could be chosen and then
	// those that were left out.
	Ranks []Explained
}

// Explained is one rank's part in a choice.
type Explained struct {
	Candidate
	Left    Reason // why it was left out; Eligible if it was not
	Formula string // the policy's cost in numbers; empty if it was left out
}

// scratch is a request's working memory.
type scratch struct {
	local   []uint64 // only read: of the prompt, or hashed
	hashed  []uint64
	result  shard.Result
	shares  []rankDepth                          // in place of result, if listed
	guess   func(id shard.RankID, blocks uint32) // adds to shares
	listed  bool
	eagle   []uint64                 // local with the token after each block; empty if not looked up
	unknown func(worker uint64) bool // of whom no share has answered; nil: of nobody
	looked  bool                     // these are of this request
	guessed bool                     // its tokens are not known
	exact   bool                     // what was found are no bounds
	weigh   Weighing
	tokens  int
	private int // blocks of a prompt whose tokens are not known
	cands   []Candidate
	left    []Explained
	beside  []Candidate  // ranks that others' requests may go to and this one may not (foresee), or this router's own (near)
	seen    []seen       // of choices that are to be explained
	trace   spans.Span   // of the caller
	times   [2]time.Time // for its parts: when the look-up began, and ended
}

// BestWorker chooses the rank that serves the request best, and books it if
// Options.RequestID is set. The error wraps or is a *NoWorkerError,
// load.ErrDuplicate, ErrSettings, blockhash.ErrBlockSize, or the context's.
func (r *Router) BestWorker(ctx context.Context, p Prompt, o Options) (Answer, error) {
	s := r.scratch.Get().(*scratch)
	defer r.scratch.Put(s)
	if err := r.prepare(ctx, s, &p, &o); err != nil {
		return Answer{}, err
	}
	a, err := r.chooseNow(ctx, s, &o)
	if err == nil && o.RequestID != "" {
		r.placed(a.RankID, s)
	}
	if err == nil {
		r.write(ctx, s, &o, &a, nil)
		if s.trace.On() {
			r.tell(s, &a, nil)
		}
	}
	return a, err
}

func (r *Router) chooseNow(ctx context.Context, s *scratch, o *Options) (Answer, error) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(now)
	return r.choose(ctx, s, o, now)
}

// placed tells an index that learns from choices. The lock is not held.
func (r *Router) placed(id shard.RankID, s *scratch) {
	if r.cfg.Guesses != nil {
		r.cfg.Guesses.Placed(id, s.local)
	}
}

// prepare hashes the prompt and looks it up, before the lock is taken.
func (r *Router) prepare(ctx context.Context, s *scratch, p *Prompt, o *Options) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("choosing a worker: %w", err)
	}
	if err := o.check(); err != nil {
		return err
	}
	s.local, s.tokens = p.Local, len(p.Tokens)
	var err error
	if p.Local != nil {
		s.tokens = max(p.Length, len(s.local)*r.cfg.BlockSize)
	} else {
		s.hashed, err = blockhash.LocalHashes(s.hashed[:0], p.Tokens, r.cfg.BlockSize, p.Hash)
		s.local = s.hashed
	}
	if err != nil {
		return fmt.Errorf("hashing a prompt: %w", err)
	}
	s.tokens = min(s.tokens, load.MaxCount)
	s.private, s.guessed = p.rest(), p.Guessed
	if p.Guessed {
		s.private += s.tokens
	}
	s.private = min(s.private, load.MaxCount) / r.cfg.BlockSize
	s.tokens = min(s.tokens+p.rest(), load.MaxCount)
	s.looked, s.listed, s.exact, s.unknown, s.seen = false, false, false, nil, s.seen[:0]
	s.eagle = s.eagle[:0]
	if p.Local == nil && r.cfg.Eagle != nil && r.cfg.Eagle() {
		hash := p.Hash
		hash.Eagle = true
		s.eagle, _ = blockhash.LocalHashes(s.eagle, p.Tokens, r.cfg.BlockSize, hash) // its error was local's
	}
	if s.trace = spans.Of(ctx); s.trace.On() {
		s.times[0] = r.cfg.Now()
	}
	if r.usesIndex(s, o) {
		r.find(ctx, s)
	}
	if s.trace.On() {
		s.times[1] = r.cfg.Now()
	}
	return nil
}

func (o *Options) check() error {
	if o.Weight != nil {
		if err := checkNumber("overlap weight", *o.Weight); err != nil {
			return err
		}
	}
	if o.Temperature != nil {
		if err := checkNumber("temperature", *o.Temperature); err != nil {
			return err
		}
	}
	for _, t := range [...]*time.Duration{o.FirstToken, o.Token, &o.Waited} {
		if t != nil && *t < 0 {
			return fmt.Errorf("%w: a target or a wait of %v, give a time from 0 on", ErrSettings, *t)
		}
	}
	if len(o.RequestID) > MaxRequestID {
		return fmt.Errorf("%w: a request id of %d bytes, give at most %d", ErrSettings, len(o.RequestID), MaxRequestID)
	}
	if o.Stage > DecodeStage {
		return fmt.Errorf("%w: stage %d", ErrSettings, o.Stage)
	}
	return nil
}

// usesIndex reports whether the policy weighs what is cached. It reads only
// what never changes.
func (r *Router) usesIndex(s *scratch, o *Options) bool {
	s.weigh.Settings = &r.cfg.Settings
	s.weigh.override(o)
	return r.policy.UsesIndex(&s.weigh)
}
