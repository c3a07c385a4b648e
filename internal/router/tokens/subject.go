package tokens

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/pace"
)

// Subject is one model of the fleet: its files, and what is known of whether its engines
// agree with them. Its methods are safe for concurrent use.
type Subject struct {
	source *Source
	space  event.Space
	use    atomic.Pointer[use] // what requests go by

	mu      sync.Mutex
	proof   Proof
	files   Files
	model   *Model    // nil: no files, or they cannot be loaded
	bad     error     // why files cannot be used
	again   pace.Pace // when they are tried again
	workers map[uint64]*worker
	due     []Engine // whose engines are to be compared
	proving int      // goroutines that do so
	quota   pace.Quota

	sampling   atomic.Bool // a request is being compared, or about to be
	vocabulary vocabulary
}

// use is what ids are made by from one change to the next. It is not changed: ids stand as
// long as theirs is the Subject's.
type use struct {
	model *Model // nil: no files
	state [kinds]State
	epoch uint64
}

// renewLocked makes use what holds now.
func (s *Subject) renewLocked() {
	u := &use{model: s.model, epoch: s.proof.Epoch()}
	for k := range kinds {
		u.state[k] = s.proof.State(k)
	}
	was := s.use.Load()
	if was == nil || was.model != u.model || was.state != u.state || was.epoch != u.epoch {
		s.use.Store(u)
	}
}

// IDs are a prompt's tokens that were made here.
type IDs struct {
	List []uint32
	of   *Subject
	use  *use
	kind Kind
}

// Stand reports whether the ids may still be used: nothing was found since that speaks
// against them.
func (d *IDs) Stand() bool { return d.of.use.Load() == d.use }

// Agreed reports whether the worker's engine itself was seen to make such ids: what it is
// sent in place of a text. is says which engine is meant (Engine.Is): who has come under the
// worker's id since has shown nothing, also while nobody has looked.
func (d *IDs) Agreed(worker uint64, is any) bool {
	if !d.Stand() {
		return false
	}
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	w := d.of.workers[worker]
	return w != nil && w.engine == is && d.of.proof.Agrees(worker, d.kind)
}

// SGLang reports whether they were made by SGLang's rules of requests.
func (d *IDs) SGLang() bool { return d.use.model.sglang }

// Request is one whose prompt's tokens are wanted.
type Request struct {
	Form Form
	Body []byte
	// Came is the API by which it came, and Asked its body there, where Form and Body are the chat
	// that was made of it; zero otherwise. It is what an engine is asked with that is compared.
	Came          Form
	Asked         []byte
	Adapter       string // LoRA; "" for none
	Authorization string // of the client, which an engine may want to see when it is asked
}

// Tokens makes the ids of a request's prompt. The error is an AskError. A sample of the
// requests is compared with an engine's tokens later.
func (s *Subject) Tokens(ctx context.Context, r Request) (*IDs, error) {
	u := s.use.Load()
	if u == nil || u.model == nil {
		return nil, s.source.counted(&AskError{Reason: NoTokenizer})
	}
	if r.Adapter != "" {
		return nil, s.source.counted(&AskError{Reason: Adapter})
	}
	k := r.Form.Kind()
	switch u.state[k] {
	case Unproven:
		s.sample(u, &r, r.Form, r.Body, 1)
		return nil, s.source.counted(&AskError{Reason: NotProven})
	case Disagrees:
		return nil, s.source.counted(&AskError{Reason: Differs})
	case Trusted:
	}
	list, err := u.model.Tokens(ctx, r.Form, r.Body, nil)
	if err != nil {
		return nil, s.source.counted(err)
	}
	s.source.made.Inc()
	form, body := r.Form, r.Body
	if r.Came != 0 {
		k = r.Came.Kind()
		if u.state[k] == Trusted { // else nobody says what it makes of them
			form, body = r.Came, r.Asked
		}
	}
	s.sample(u, &r, form, body, s.source.cfg.Sample)
	return &IDs{List: list, of: s, use: u, kind: k}, nil
}

// Differs reports whether an engine was seen to make other tokens of such a request.
func (s *Subject) Differs(f Form) bool {
	u := s.use.Load()
	return u != nil && u.model != nil && u.state[f.Kind()] == Disagrees
}

// Template is what the model's template decides of other APIs' conversations; nil while that
// is not known, or its files are not trusted.
func (s *Subject) Template() *api.Template {
	u := s.use.Load()
	if u == nil || u.model == nil || u.state[Chat.Kind()] != Trusted {
		return nil
	}
	return u.model.template
}

// Scores is how the model's engines make prompts of scores; "" while that is not known, or its
// files are not its engines'.
func (s *Subject) Scores() api.ScoreRule {
	u := s.use.Load()
	if u == nil || u.model == nil || u.state[Texts] == Disagrees {
		return ""
	}
	return u.model.scores
}

// Text returns the text of the ids of a request to /detokenize, where that is trusted. The error is
// an AskError.
func (s *Subject) Text(r Request) (string, error) {
	u := s.use.Load()
	switch {
	case u == nil || u.model == nil:
		return "", s.source.counted(&AskError{Reason: NoTokenizer})
	case u.state[Detokenized] == Unproven:
		return "", s.source.counted(&AskError{Reason: NotProven})
	case u.state[Detokenized] == Disagrees:
		return "", s.source.counted(&AskError{Reason: Differs})
	}
	text, err := u.model.textOf(r.Body)
	if err == nil {
		s.sample(u, &r, r.Form, r.Body, s.source.cfg.Sample)
	}
	return text, s.source.counted(err)
}

// sample queues a request to be compared, if chance and the rate say so and none of the model is.
func (s *Subject) sample(u *use, r *Request, form Form, body []byte, share float64) {
	if share < 1 && rand.Float64() >= share || len(body) > maxSample || !s.sampling.CompareAndSwap(false, true) {
		return
	}
	if s.mayCompare() {
		select {
		case s.source.samples <- sample{s, u, form, slices.Clone(body), strings.Clone(r.Authorization)}:
			return
		default:
		}
	}
	s.sampling.Store(false)
}

// mayCompare reports whether the rate allows a comparison: each model has an even part of it, so
// that one of which every request is compared, as nothing is proven, takes nothing from others.
func (s *Subject) mayCompare() bool {
	rate, now := s.source.cfg.Rate, s.source.now()
	if rate == 0 {
		return false
	}
	s.mu.Lock()
	part := s.quota.Take(now, rate, time.Duration(len(*s.source.of.Load()))*time.Second)
	s.mu.Unlock()
	return part == 0 && s.source.mayCompare(now)
}

// maxSample bounds the body of a request that is compared.
const maxSample = 8 << 20

// sample is a request to be compared.
type sample struct {
	of            *Subject
	use           *use
	form          Form
	body          []byte
	authorization string
}

// compare compares what the files make of a body with what a worker's engine makes of it, and
// notes if that is another. said is set if both have tokens, and same if those are alike: no
// tokens at all show nothing. The error is of an engine that does not say.
func (s *Subject) compare(ctx context.Context, u *use, e *Engine, p Probe, authorization string) (said, same bool, err error) {
	q := Question{Space: s.space, Worker: e.Worker, Is: e.Is, Form: p.Form, Body: p.Body, Authorization: authorization}
	d := Difference{Worker: e.Worker, Prompts: p.Form.Kind().String()}
	if p.Form == Detokenize {
		ours, err := u.model.textOf(p.Body)
		if err != nil || s.source.cfg.AskText == nil {
			return false, false, nil //nolint:nilerr // not made here: nothing to compare
		}
		theirs, err := s.source.cfg.AskText(ctx, q)
		if err != nil {
			s.source.unknown.Inc()
			return false, false, err
		}
		d.Position, d.Ours, d.Theirs = Diff([]byte(ours), []byte(theirs)), len(ours), len(theirs)
	} else {
		ours, theirs, made, err := s.both(ctx, u, q)
		if !made || err != nil {
			return false, false, err
		}
		d.Position, d.Ours, d.Theirs = Diff(ours, theirs), len(ours), len(theirs)
	}
	if k := p.Form.Kind(); d.Position >= 0 && k != Texts && k != Detokenized && u.model.turning() {
		s.source.unknown.Inc()
		return false, false, errTurns
	}
	if d.Position < 0 {
		s.source.agreed.Inc()
		return true, d.Ours > 0, nil
	}
	s.source.differed.Inc()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proof.State(p.Form.Kind()) != Disagrees && s.proof.Epoch() == u.epoch {
		s.source.log.Error("an engine's tokens are not those of the model's files: engines are asked from now on; mend the files or the engine, then `kvctl tokenizers retry`",
			"model", s.space.Model, "group", s.space.Group, "kind", d.Prompts, "worker", e.Worker, "position", d.Position, "ours", d.Ours, "theirs", d.Theirs)
	}
	s.proof.Differed(u.epoch, d)
	s.renewLocked()
	return true, false, nil
}

var errTurns = errors.New("what is made here changes faster than the engine answers")

// both makes the tokens of a question here, if that is done, and has the engine make them. A template
// may write the date: where it has turned meanwhile, both are made once more.
func (s *Subject) both(ctx context.Context, u *use, q Question) (ours, theirs []uint32, made bool, err error) {
	ofFiles := func() (list []uint32, ok bool) {
		list, err := u.model.Tokens(ctx, q.Form, q.Body, nil)
		return list, err == nil
	}
	for range 2 {
		if ours, made = ofFiles(); !made {
			return nil, nil, false, nil // nothing to compare
		}
		if theirs, err = s.source.cfg.Ask(ctx, q); err != nil {
			s.source.unknown.Inc()
			return nil, nil, false, err
		}
		if Diff(ours, theirs) < 0 {
			return ours, theirs, true, nil
		}
		if again, ok := ofFiles(); ok && Diff(ours, again) < 0 {
			return ours, theirs, true, nil
		}
	}
	s.source.unknown.Inc()
	return nil, nil, false, errTurns
}

// question compares an engine by the questions. It agrees in a kind if it answers any of that
// kind, all alike, and fails at none: nothing less shows that, no matter what a client says.
func (s *Subject) question(ctx context.Context, u *use, e *Engine, model, authorization string) (err error) {
	var agrees [kinds]bool
	said := false
	for _, q := range append(Questions(model), u.model.idQuestions(ctx, model)...) {
		answers, same, failed := s.compare(ctx, u, e, q, authorization)
		if failed != nil && !errors.Is(failed, ErrSilent) {
			agrees[q.Form.Kind()] = false
			err = failed
			break
		}
		said = said || answers
		agrees[q.Form.Kind()] = agrees[q.Form.Kind()] || same
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workers[e.Worker]
	if w == nil || w.engine != e.Is || s.proof.Epoch() != u.epoch {
		return err // another one by now
	}
	w.said = w.said || said
	for k, is := range agrees {
		if !is {
			continue
		}
		was := s.proof.State(Kind(k))
		if s.proof.Agreed(u.epoch, e.Worker, Kind(k)); was == Unproven && s.proof.State(Kind(k)) == Trusted {
			s.source.log.Info("a model's tokens are made in the process: an engine makes the same", "model", s.space.Model, "group", s.space.Group,
				"kind", Kind(k).String(), "worker", e.Worker)
		}
	}
	s.renewLocked()
	return err
}

// setFiles makes the model's files others. What was shown of the old ones is void.
func (s *Subject) setFiles(f Files, m *Model, err error, begun time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files, s.model, s.bad = f, m, err
	if err != nil {
		s.again.Later(begun, s.source.now(), againLeast, againMost, 0)
	} else {
		s.again.Progress()
	}
	s.renewProofLocked()
}

func (s *Subject) renewProofLocked() {
	s.proof.Renew()
	clear(s.workers) // all are compared anew
	s.due = nil
	s.renewLocked()
}

// worker is how far an engine's comparison at its registration is.
type worker struct {
	engine any  // its identity
	said   bool // it has answered any question
	due    bool // it is in Subject.due, or being asked
	done   bool // it need not be asked again
	again  pace.Pace
}

// Status is what is known of one model's tokens.
type Status struct {
	Model      string            `json:"model_name"`
	BlockSize  uint32            `json:"block_size"`
	Group      string            `json:"routing_group"`
	Files      string            `json:"files,omitempty"`    // the hash of all
	From       string            `json:"from,omitempty"`     // where they are from
	Error      string            `json:"error,omitempty"`    // why they cannot be used
	NoChats    string            `json:"no_chats,omitempty"` // why chats are not written
	Mixed      bool              `json:"-"`                  // that is since engines of several kinds serve the model
	States     map[string]string `json:"states"`             // by kind
	Workers    int               `json:"workers"`
	Compared   int               `json:"compared"` // workers whose engines said their tokens
	Difference *Difference       `json:"difference,omitempty"`
	Memory     int               `json:"bytes"`
}

// Status returns what is known.
func (s *Subject) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := Status{Model: s.space.Model, BlockSize: s.space.BlockSize, Group: s.space.Group, Files: s.files.ID, From: s.files.From, States: map[string]string{}, Workers: len(s.workers), Difference: s.proof.Differs()}
	for k := range kinds {
		x.States[k.String()] = s.proof.State(k).String()
	}
	for _, w := range s.workers {
		if w.said {
			x.Compared++
		}
	}
	if s.bad != nil {
		x.Error = s.bad.Error()
	}
	if s.model != nil {
		if err := s.model.Chats(); err != nil {
			x.NoChats, x.Mixed = err.Error(), errors.Is(err, errSeveral)
		}
		x.Memory = s.model.Memory()
	}
	return x
}
