package tokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/event"
)

// probes is how many of a model's engines are compared at once, and loads how many models' files are
// fetched and loaded: who takes long holds up his own model, or one place of several.
const (
	probes = 8
	loads  = 4
)

// How long after a comparison in vain the next is, and after files that could not be had.
const (
	againLeast = time.Second
	againMost  = time.Minute
)

// fetchWithin bounds the fetching of a model's files, and how long who reads them takes a place from others:
// a read of a directory cannot be ended.
const fetchWithin = 2 * time.Minute

// errLoading: the files are on their way.
var errLoading = errors.New("the files are being loaded")

// errDiffer: what is exact for one worker is not for another.
var errDiffer = errors.New("workers register with different files: engines are asked until they agree")

// look brings the models in line with the fleet, and has engines compared that have not been. It
// waits for nobody; what takes time is done by goroutines that all counts.
func (s *Source) look(ctx context.Context, fleet map[event.Space][]Engine, all *sync.WaitGroup) {
	var over []string
	for id, l := range s.loads {
		if l.over() {
			over = append(over, id)
		}
	}
	for sp, engines := range fleet {
		x := s.Of(sp)
		s.files(ctx, x, fleet, all)
		for range x.arrived(engines, s.now()) {
			all.Go(func() { x.prove(ctx) })
		}
	}
	for _, id := range over { // what nobody has taken, nobody wants any more
		delete(s.loads, id)
	}
	s.forget()
	s.drop(fleet)
	s.cfg.Dirs.keep(fleet)
}

// maxGone bounds the models that are remembered though nobody serves them.
const maxGone = 1024

// drop forgets models that nobody serves, where there are too many: first those without files. Who
// comes again under such a name is compared anew.
func (s *Source) drop(fleet map[event.Space][]Engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := *s.of.Load()
	gone := 0
	for sp := range was {
		if _, served := fleet[sp]; !served {
			gone++
		}
	}
	if gone <= maxGone {
		return
	}
	all := maps.Clone(was)
	for _, files := range []bool{false, true} {
		for sp, x := range was {
			u := x.use.Load()
			if _, served := fleet[sp]; !served && gone > maxGone/2 && (u != nil && u.model != nil) == files {
				delete(all, sp)
				gone--
			}
		}
	}
	s.of.Store(&all)
}

// loading is a model on its way.
type loading struct {
	done  chan struct{}
	begun time.Time
	m     *Model
	err   error
}

func (l *loading) over() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// files gives a model the files that it should have: those of a directory, else those that all
// workers which name any have registered with.
func (s *Source) files(ctx context.Context, x *Subject, fleet map[event.Space][]Engine, all *sync.WaitGroup) {
	engines := fleet[x.space]
	want, found, err := s.cfg.Dirs.find(x.space.Model, all.Go, s.wake)
	if errors.Is(err, errLoading) {
		return
	}
	for _, e := range engines {
		switch {
		case found, e.Files.ID == "":
		case want.ID == "":
			want = e.Files
		case want.ID != e.Files.ID:
			err = errDiffer
		}
	}
	if want.Engine = x.rules(engines); err != nil {
		want = Files{From: want.From}
	}
	now := s.now()
	if !x.wants(want, err, len(engines) > 0, now) {
		return
	}
	var m *Model
	if err == nil && want.ID != "" {
		m, err = s.load(ctx, want, fleet, all)
	}
	if errors.Is(err, errLoading) {
		return
	}
	if err != nil {
		s.limit.Warn(x.space.Model, "a model's files cannot be used: engines are asked for its tokens", slog.String("model", x.space.Model),
			slog.String("group", x.space.Group), slog.String("from", want.From), slog.Any("error", err))
	}
	x.setFiles(want, m, err, now)
}

// SeveralEngines are the rules of requests (Options.Engine) of a model that SGLang's engines serve beside
// others: there are none that hold for all.
const SeveralEngines = "several"

var errSeveral = errors.New("SGLang and other engines serve the model, and write its chats each in its own way: give them routing groups of their own, or models")

// rules says whose rules of requests hold: SGLang's if that is what all engines say that say
// anything, nobody's if some do; as before while none does.
func (s *Subject) rules(engines []Engine) string {
	said := map[bool]bool{}
	for _, e := range engines {
		if e.Software != "" {
			said[e.Software == string(chat.SGLang)] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(said) == 0:
		return s.files.Engine
	case said[true] && said[false]:
		return SeveralEngines
	case said[true]:
		return string(chat.SGLang)
	}
	return ""
}

// wants reports whether the model is to have these files now, or none for an error.
func (s *Subject) wants(want Files, err error, served bool, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case want.key() != s.files.key():
		return want.ID != "" || err != nil || served // whom nobody serves just now keeps what it had
	case err != nil:
		return s.bad == nil || s.bad.Error() != err.Error()
	case want.ID == "":
		return s.bad != nil
	}
	return s.model == nil && s.again.Ready(now)
}

// load returns the model of the files, which all that have the same share; errLoading while it is
// on its way.
func (s *Source) load(ctx context.Context, f Files, fleet map[event.Space][]Engine, all *sync.WaitGroup) (*Model, error) {
	key := f.key()
	if m := s.loaded[key]; m != nil {
		return m, nil
	}
	if l := s.loads[key]; l != nil {
		if !l.over() {
			return nil, errLoading
		}
		if delete(s.loads, key); l.err == nil {
			s.loaded[key] = l.m
		}
		return l.m, l.err
	}
	if s.forget(); len(s.loaded)+len(s.loads) >= s.cfg.Most {
		s.leave(fleet)
	}
	switch {
	case len(s.loaded) >= s.cfg.Most:
		return nil, fmt.Errorf("the files of %d models are in use, and --max-tokenizers allows no more", len(s.loaded))
	case s.loading() >= loads, len(s.loaded)+len(s.loads) >= s.cfg.Most:
		return nil, errLoading // there may be room soon
	}
	l := &loading{done: make(chan struct{}), begun: s.now()}
	s.loads[key] = l
	all.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, fetchWithin)
		defer cancel()
		l.m, l.err = f.Open(ctx, f.Engine)
		close(l.done)
		s.wake()
	})
	return nil, errLoading
}

// loading is how many models are on their way, without those whose files hang.
func (s *Source) loading() (n int) {
	for _, l := range s.loads {
		if s.now().Sub(l.begun) < fetchWithin {
			n++
		}
	}
	return n
}

// wake has Run look again now.
func (s *Source) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// forget lets go of models that nobody has the files of any more.
func (s *Source) forget() {
	used := map[string]bool{}
	for _, x := range *s.of.Load() {
		x.mu.Lock()
		key := x.files.key()
		used[key] = x.model != nil || used[key]
		x.mu.Unlock()
	}
	for id := range s.loaded {
		if !used[id] {
			delete(s.loaded, id)
		}
	}
}

// leave takes the files from models that nobody serves just now, for those that somebody does.
func (s *Source) leave(fleet map[event.Space][]Engine) {
	for sp, x := range *s.of.Load() {
		x.mu.Lock()
		idle := x.model != nil && len(fleet[sp]) == 0 && x.proof.Differs() == nil
		x.mu.Unlock()
		if idle {
			x.setFiles(Files{}, nil, nil, s.now())
		}
	}
	s.forget()
}

// arrived notes who is there and whose engines are to be compared now, and returns how many more
// are to compare them (prove).
func (s *Subject) arrived(engines []Engine, now time.Time) (more int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := make(map[uint64]bool, len(engines))
	for _, e := range engines {
		there[e.Worker] = true
		w := s.workers[e.Worker]
		if w == nil || w.engine != e.Is {
			s.proof.Left(e.Worker)
			w = &worker{engine: e.Is}
			s.workers[e.Worker] = w
		}
		if s.model != nil && !w.done && !w.due && w.again.Ready(now) {
			w.due = true
			s.due = append(s.due, e)
		}
	}
	for id := range s.workers {
		if !there[id] {
			s.proof.Left(id)
			delete(s.workers, id)
		}
	}
	more = max(min(len(s.due), probes-s.proving), 0)
	s.proving += more
	return more
}

// prove compares engines at their registration, as long as there are any.
func (s *Subject) prove(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.proving-- }()
	for len(s.due) > 0 && ctx.Err() == nil {
		e := s.due[0]
		s.due = s.due[1:]
		u := s.use.Load()
		s.mu.Unlock()
		begun := s.source.now()
		within, cancel := context.WithTimeout(ctx, s.source.cfg.Within)
		var failed error
		if failed = s.unknown(within, &e); failed == nil {
			failed = s.question(within, u, &e, s.space.Model, "")
		}
		cancel()
		s.mu.Lock()
		w := s.workers[e.Worker]
		if w != nil && errors.Is(failed, errRules) {
			w.due = false // the next look knows
			continue
		}
		if w == nil || w.engine != e.Is || s.proof.Epoch() != u.epoch {
			continue // another one by now
		}
		if w.done, w.due = failed == nil, false; !w.done {
			w.again.Later(begun, s.source.now(), againLeast, againMost, e.Worker)
		}
	}
}

// errRules: the engine has just said that it is one for which other rules may hold.
var errRules = errors.New("the engine has just said what it is")

// unknown has an engine say what it is, if nobody knows.
func (s *Subject) unknown(ctx context.Context, e *Engine) error {
	if e.Software != "" || s.source.cfg.Software == nil {
		return nil
	}
	if s.source.cfg.Software(ctx, Question{Space: s.space, Worker: e.Worker, Is: e.Is}) != "" {
		return errRules
	}
	return nil
}

// Probe is a request by which files and an engine are compared.
type Probe struct {
	Form Form
	Body []byte
}

// Questions are what engines are compared by when they come: letters of many scripts, numbers,
// white space and punctuation, which patterns treat apart; and chats with all that templates
// treat apart. The words stand for nothing; spaces stand where some engines leave them out when ids
// become text.
func Questions(model string) []Probe {
	const text = `The quick brown fox's 12345678 jumps\tover\n\n  the LAZY dog!?\r\n do n't , I 'm , he 's . OK ? ' so ' !\r\n    if x_1 != None: return {\"a\": [1.5e-3, 'b']}  ` +
		`naïve café Größe ἀλήθεια съешь ещё שלום مرحبا हिन्दी ภาษาไทย 日本語の文章です。 漢字 한국어 😀👩‍👩‍👧 …—“quotes” ½ ①  x\u200by\u00a0z`
	const schema = `"input_schema":{"type":"object","properties":{"what":{"type":"string","description":"é"},"n":{"type":"integer"}},"required":["what"]}`
	const tool = `{"type":"function","function":{"name":"look_up","description":"Looks something up.","parameters":{"type":"object","properties":{"what":{"type":"string","description":"é"},"n":{"type":"integer"}},"required":["what"]}}}`
	name, err := json.Marshal(model)
	if err != nil {
		return nil // a text always has JSON
	}
	list := []Probe{}
	for _, q := range []struct {
		form Form
		body string
	}{
		{Completion, `{"prompt":"` + text + `"}`},
		{Completion, `{"prompt":"` + text + `","add_special_tokens":false}`},
		{Chat, `{"messages":[{"role":"user","content":"` + text + `"}]}`},
		{Chat, `{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":" c "}]}`},
		{Chat, `{"messages":[{"role":"user","content":"a"}],"tools":[` + tool + `]}`},
		{Message, `{"max_tokens":1,"messages":[{"role":"user","content":"` + text + `"}]}`},
		{Message, `{"max_tokens":1,"system":[{"type":"text","text":"Be brief."}],"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"text","text":"b"},` +
			`{"type":"tool_use","id":"t_1","name":"look_up","input":{"what":"é","n":2}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t_1","content":"c"},{"type":"text","text":" d "}]}],` +
			`"tools":[{"name":"look_up","description":"Looks something up.",` + schema + `}]}`},
		{Response, `{"input":"` + text + `"}`},
		{Response, `{"instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"function_call","call_id":"t_1","name":"look_up","arguments":"{\"what\":\"é\"}"},` +
			`{"type":"function_call_output","call_id":"t_1","output":"c"}],"tools":[{"type":"function","name":"look_up","description":"Looks something up.",` + strings.Replace(schema, "input_schema", "parameters", 1) + `}]}`},
	} {
		list = append(list, Probe{q.form, []byte(`{"model":` + string(name) + `,` + q.body[1:])})
	}
	return list
}
