package tokens_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/modelfiles"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
)

// shop has the files that registrations name, and engines that go by some of them.
type shop struct {
	t       *testing.T
	sets    map[string]modelfiles.Set // by ID
	fetched atomic.Int64
	away    atomic.Bool // nothing can be fetched
	slow    string      // these files do not come
	silent  func(q tokens.Question) error
	source  *tokens.Source
	engine  atomic.Pointer[tokens.Model] // by which engines make tokens
	fleet   atomic.Pointer[map[event.Space][]tokens.Engine]
}

func (s *shop) set(template string) []modelfiles.File {
	set, err := modelfiles.Read(tokentest.Files(template))
	if err != nil {
		s.t.Fatal(err)
	}
	s.sets[set.ID()] = set
	return set.Files()
}

// newShop has engines say what a model with this template makes.
func newShop(t *testing.T, template string, most int) *shop { return newShopAt(t, template, most, nil) }

func newShopAt(t *testing.T, template string, most int, now func() time.Time) *shop {
	s := &shop{t: t, sets: map[string]modelfiles.Set{}}
	m, err := tokens.Load(tokentest.Files(template), tokens.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.engine.Store(m)
	s.source = tokens.NewSource(tokens.Config{
		Fetch: func(ctx context.Context, list []modelfiles.File) (modelfiles.Set, error) {
			s.fetched.Add(1)
			if modelfiles.ID(list) == s.slow {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			if s.away.Load() {
				return nil, fs.ErrNotExist
			}
			return s.sets[modelfiles.ID(list)], nil
		},
		Ask: func(ctx context.Context, q tokens.Question) ([]uint32, error) {
			if q.Worker == 99 {
				return nil, errors.New("it cannot be reached")
			}
			if s.silent != nil {
				if err := s.silent(q); err != nil {
					return nil, err
				}
			}
			return s.engine.Load().Tokens(ctx, q.Form, q.Body, nil)
		},
		Sample: 1, Rate: 10, Most: most, Options: tokens.Options{Now: now},
	})
	s.fleet.Store(&map[event.Space][]tokens.Engine{})
	return s
}

// serve makes the fleet one of models whose workers, from 1 on, name these files.
func (s *shop) serve(models map[string][][]modelfiles.File) {
	fleet := map[event.Space][]tokens.Engine{}
	for model, workers := range models {
		list := []tokens.Engine{}
		for i, files := range workers {
			list = append(list, tokens.Engine{Worker: uint64(i + 1), Is: i, Files: s.source.Registered(files)})
		}
		fleet[event.Space{Model: model, BlockSize: 16}] = list
	}
	s.fleet.Store(&fleet)
}

func (s *shop) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.source.Run(ctx, func() map[event.Space][]tokens.Engine { return maps.Clone(*s.fleet.Load()) })
	}()
	s.t.Cleanup(func() { cancel(); <-done })
}

func (s *shop) status(model string) tokens.Status {
	<-time.After(5 * time.Second) // of a bubble's clock: looks have come and gone
	synctest.Wait()
	return s.source.Of(event.Space{Model: model, BlockSize: 16}).Status()
}

// Files that workers name are fetched once for all models and workers that name the same. Where
// two workers of a model name others, engines are asked until they agree.
func TestRegisteredFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, tokentest.Template, 0)
		a, b := s.set(tokentest.Template), s.set(tokentest.Template+"!")
		s.serve(map[string][][]modelfiles.File{"one": {a, a, nil}, "two": {a}})
		s.run()
		for _, model := range []string{"one", "two"} {
			if x := s.status(model); x.States["chats"] != "trusted" || x.Compared != x.Workers || x.Workers == 0 {
				t.Errorf("%+v", x)
			}
		}
		if n := s.fetched.Load(); n != 1 {
			t.Errorf("the files were fetched %d times", n)
		}
		s.serve(map[string][][]modelfiles.File{"one": {a, b}, "two": {a}})
		if x := s.status("one"); x.States["chats"] != "unproven" || !strings.Contains(x.Error, "different files") {
			t.Errorf("two workers that differ: %+v", x)
		}
		s.serve(map[string][][]modelfiles.File{"one": {b, b}, "two": {a}})
		if x := s.status("one"); x.States["texts"] != "disagrees" || x.Error != "" {
			t.Errorf("both have the other's: %+v", x)
		}
		s.serve(map[string][][]modelfiles.File{"one": {}, "two": {nil}})
		if x := s.status("one"); x.States["texts"] != "disagrees" || x.Workers != 0 {
			t.Errorf("nobody is there: %+v", x)
		}
		if x := s.status("two"); x.Files != "" || x.States["texts"] != "unproven" {
			t.Errorf("no files are named any more: %+v", x)
		}
	})
}

// What cannot be fetched is tried again, less and less often; what cannot be loaded harms nobody;
// models beyond the most that may be in memory are left to engines.
func TestFilesThatCannotBeUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, tokentest.Template, 1)
		a, b := s.set(tokentest.Template), s.set(tokentest.Template+"!")
		s.away.Store(true)
		s.serve(map[string][][]modelfiles.File{"one": {a}})
		s.run()
		time.Sleep(10 * time.Minute)
		if x := s.status("one"); x.Error == "" || s.fetched.Load() < 10 || s.fetched.Load() > 40 {
			t.Errorf("%d times in ten minutes: %+v", s.fetched.Load(), x)
		}
		s.away.Store(false)
		time.Sleep(2 * time.Minute)
		if x := s.status("one"); x.States["texts"] != "trusted" || x.Error != "" {
			t.Errorf("%+v", x)
		}
		s.serve(map[string][][]modelfiles.File{"one": {a}, "two": {b}})
		if x := s.status("two"); !strings.Contains(x.Error, "max-tokenizers") {
			t.Errorf("%+v", x)
		}
		s.serve(map[string][][]modelfiles.File{"one": {}, "two": {b}}) // nobody serves the first any more
		if x := s.status("two"); x.States["texts"] != "disagrees" || x.Error != "" {
			t.Errorf("%+v", x)
		}
		if x := s.status("one"); x.Files != "" || x.Memory != 0 {
			t.Errorf("%+v", x)
		}
		hostile := modelfiles.Set{"tokenizer.json": []byte(`{"model":{"type":"BPE","vocab":{},"merges":[` + strings.Repeat(`[`, 1<<16))}
		s.sets[hostile.ID()] = hostile
		s.serve(map[string][][]modelfiles.File{"one": {hostile.Files()}})
		if x := s.status("one"); x.Error == "" || x.States["texts"] != "unproven" || x.Memory != 0 {
			t.Errorf("%+v", x)
		}
	})
}

// An engine that cannot be asked when it comes is asked later, and proves nothing until then.
func TestEnginesThatDoNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, tokentest.Template, 0)
		a := s.set(tokentest.Template)
		space := event.Space{Model: "one", BlockSize: 16}
		s.fleet.Store(&map[event.Space][]tokens.Engine{space: {{Worker: 99, Is: 1, Files: s.source.Registered(a)}}})
		s.run()
		if x := s.status("one"); x.States["texts"] != "unproven" || x.Compared != 0 || x.Workers != 1 {
			t.Errorf("%+v", x)
		}
		var ask *tokens.AskError
		if _, err := s.source.Of(space).Tokens(t.Context(), tokens.Request{Body: []byte(`{"prompt":"x"}`)}); !errors.As(err, &ask) || ask.Reason != tokens.NotProven {
			t.Error(err)
		}
		s.serve(map[string][][]modelfiles.File{"one": {a}})
		if x := s.status("one"); x.States["texts"] != "trusted" || x.States["chats"] != "trusted" {
			t.Errorf("%+v", x)
		}
	})
}

// What a client says proves nothing of files, be it without tokens or with a few; for the client
// whom an engine answers, it is asked the router's own questions. A kind of which an engine
// fails at one question is not proven.
func TestWhatProves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, tokentest.Template, 0)
		space := event.Space{Model: "one", BlockSize: 16}
		var fails atomic.Pointer[string] // a part of what it fails at
		all := `"model"`
		fails.Store(&all)
		s.silent = func(q tokens.Question) error {
			switch at := fails.Load(); {
			case q.Authorization == "client" && strings.Contains(string(q.Body), `"x"`):
				return nil
			case at != nil && strings.Contains(string(q.Body), *at):
				return errors.New("not for you")
			}
			return nil
		}
		s.serve(map[string][][]modelfiles.File{"one": {s.set(tokentest.Template)}})
		s.run()
		s.status("one")
		ask := func(body string) {
			t.Helper()
			for _, f := range []tokens.Form{tokens.Completion, tokens.Chat} {
				_, _ = s.source.Of(space).Tokens(t.Context(), tokens.Request{Form: f, Body: []byte(body), Authorization: "client"})
				time.Sleep(time.Second)
				synctest.Wait()
			}
		}
		for _, said := range []string{"", "x"} {
			ask(`{"prompt":"` + said + `","add_special_tokens":false,"messages":[{"role":"user","content":"` + said + `"}]}`)
			if x := s.status("one"); x.States["texts"] != "unproven" || x.States["chats"] != "unproven" || x.Compared != 0 {
				t.Errorf("%q of a client is a proof: %+v", said, x)
			}
		}
		tools := `"tools"`
		fails.Store(&tools)
		ask(`{"prompt":"x","messages":[{"role":"user","content":"x"}]}`)
		if x := s.status("one"); x.States["texts"] != "trusted" || x.States["chats"] != "unproven" || x.Compared != 1 {
			t.Errorf("%+v", x)
		}
		fails.Store(nil)
		ask(`{"prompt":"x","messages":[{"role":"user","content":"x"}]}`)
		if x := s.status("one"); x.States["chats"] != "trusted" {
			t.Errorf("%+v", x)
		}
	})
}

// An engine that says nothing is shown as not compared, and another one that has come under the
// id of one that agreed is not taken for it, neither before that is noticed nor by what the first
// answers late.
func TestWhoAgrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, tokentest.Template, 0)
		files := s.source.Registered(s.set(tokentest.Template))
		space := event.Space{Model: "one", BlockSize: 16}
		come := func(is any) {
			s.fleet.Store(&map[event.Space][]tokens.Engine{space: {{Worker: 1, Is: is, Files: files}}})
		}
		s.silent = func(q tokens.Question) error {
			switch q.Is {
			case "mute":
				return tokens.ErrSilent
			case "slow":
				time.Sleep(2 * time.Second)
			}
			return nil
		}
		come("one")
		s.run()
		s.status("one")
		make := func() *tokens.IDs {
			ids, err := s.source.Of(space).Tokens(t.Context(), tokens.Request{Body: []byte(`{"prompt":"x"}`)})
			if err != nil {
				t.Fatal(err)
			}
			return ids
		}
		ids := make()
		if !ids.Agreed(1, "one") || ids.Agreed(1, "mute") || ids.Agreed(2, "one") {
			t.Error("who agrees is not who was seen to")
		}
		come("mute")
		if x := s.status("one"); x.Compared != 0 || x.Workers != 1 || x.States["texts"] != "trusted" || ids.Agreed(1, "one") || ids.Agreed(1, "mute") {
			t.Errorf("it says nothing: %+v", x)
		}
		come("slow")
		time.Sleep(1500 * time.Millisecond)
		make() // a sample, which is answered when that engine is no more
		come("mute")
		if s.status("one"); ids.Agreed(1, "mute") {
			t.Error("what another engine said late is its")
		}
	})
}

// Chats are written by SGLang's rules where that is what engines say that they are, and by vLLM's
// where they say another thing, or the files do; while none says anything it stays as it was. Where some
// are SGLang's and others are not, chats are left to engines, shown, and texts are not.
func TestWhoseRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, tokentest.Template, 0)
		space := event.Space{Model: "one", BlockSize: 16}
		a := s.set(tokentest.Template)
		told := tokentest.Files(tokentest.Template)
		told[modelfiles.Server] = &fstest.MapFile{Data: []byte(`{"engine":"vllm"}`)}
		set, err := modelfiles.Read(told)
		if err != nil {
			t.Fatal(err)
		}
		s.sets[set.ID()] = set
		s.run()
		for _, c := range []struct {
			files    []modelfiles.File
			software []string
			sglang   bool
			several  bool
		}{{a, []string{""}, false, false}, {a, []string{"sglang", ""}, true, false}, {a, []string{""}, true, false}, {a, nil, true, false}, {a, []string{"sglang", "vllm"}, false, true},
			{a, []string{"", ""}, false, true}, {a, []string{"sglang"}, true, false}, {a, []string{"vllm", ""}, false, false}, {a, []string{"vllm", "sglang"}, false, true},
			{set.Files(), []string{"sglang"}, false, false}, {set.Files(), []string{"sglang", "vllm"}, false, false}} {
			list := []tokens.Engine{}
			for i, software := range c.software {
				list = append(list, tokens.Engine{Worker: uint64(i + 1), Is: i, Software: software, Files: s.source.Registered(c.files)})
			}
			rules := map[bool]string{true: "sglang"}[c.sglang]
			m, err := tokens.Load(tokentest.Files(tokentest.Template), tokens.Options{Engine: rules})
			if err != nil {
				t.Fatal(err)
			}
			s.engine.Store(m)
			s.fleet.Store(&map[event.Space][]tokens.Engine{space: list})
			x := s.status("one")
			if shown := strings.Contains(x.NoChats, "SGLang and other engines"); shown != c.several || x.States["texts"] != "trusted" {
				t.Errorf("%v: shown %t: %+v", c.software, shown, x)
			}
			if c.several {
				for _, r := range []tokens.Request{{Form: tokens.Chat, Body: []byte(`{"messages":[{"role":"user","content":"a"}]}`)},
					{Form: tokens.Message, Body: []byte(`{"max_tokens":1,"messages":[{"role":"user","content":"a"}]}`)}, {Form: tokens.Response, Body: []byte(`{"input":"a"}`)}} {
					if got, err := s.source.Of(space).Tokens(t.Context(), r); err == nil {
						t.Errorf("%v: %v has %v", c.software, r.Form, got.List)
					}
				}
				continue
			}
			// SGLang takes a last message of the assistant for the user's; vLLM does not.
			got, err := s.source.Of(space).Tokens(t.Context(), tokens.Request{Form: tokens.Chat, Body: []byte(`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`)})
			if err != nil {
				t.Fatal(c, err)
			}
			want, err := s.source.Of(space).Tokens(t.Context(), tokens.Request{Form: tokens.Chat, Body: []byte(`{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`)})
			if err != nil || slices.Equal(got.List, want.List) != c.sglang {
				t.Errorf("%v: SGLang's rules should hold: %t, %v", c.software, c.sglang, err)
			}
		}
	})
}

// Models that nobody serves any more are forgotten where there are very many, others never.
func TestManyModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, tokentest.Template, 0)
		s.serve(map[string][][]modelfiles.File{"one": {s.set(tokentest.Template)}})
		s.run()
		s.status("one")
		for i := range 3000 {
			s.source.Of(event.Space{Model: fmt.Sprint("gone", i), BlockSize: 16})
		}
		if x := s.status("one"); x.States["chats"] != "trusted" || x.Workers != 1 {
			t.Errorf("%+v", x)
		}
		if n := len(s.source.Status()); n > 1025 {
			t.Errorf("%d models are remembered", n)
		}
	})
}

// Where the router's day turns, an engine whose clock is a little behind writes another date: that is no
// difference; at another time of the day it is.
func TestClocksAtMidnight(t *testing.T) {
	const dated = `{{ strftime_now('%d %b %Y') }}` + tokentest.Template
	for at, want := range map[string]string{"2026-03-04T00:00:20Z": "unproven", "2026-03-03T23:59:50Z": "unproven", "2026-03-04T12:00:00Z": "disagrees"} {
		synctest.Test(t, func(t *testing.T) {
			now, err := time.Parse(time.RFC3339, at)
			if err != nil {
				t.Fatal(err)
			}
			s := newShopAt(t, dated, 0, func() time.Time { return now })
			// The engine is a day away, as it looks where a minute makes another day.
			m, err := tokens.Load(tokentest.Files(dated), tokens.Options{Now: func() time.Time { return now.AddDate(0, 0, -1) }})
			if err != nil {
				t.Fatal(err)
			}
			s.engine.Store(m)
			s.serve(map[string][][]modelfiles.File{"one": {s.set(dated)}})
			s.run()
			if x := s.status("one"); x.States["chats"] != want {
				t.Errorf("%s: %+v", at, x)
			}
		})
	}
}
