package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/testing/kubetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// view is what a follower was told, as uid by name.
type view struct {
	mu       sync.Mutex
	pods     map[string]string
	replaced int
	errs     []string
}

func (v *view) sink(_ context.Context, c Change) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if c.Kind == Replaced {
		v.pods = map[string]string{}
		v.replaced++
	}
	for _, text := range c.Objects {
		var o struct{ Metadata struct{ Name, UID string } }
		if err := json.Unmarshal(text, &o); err != nil {
			return err
		}
		if c.Kind == Deleted {
			delete(v.pods, o.Metadata.Name)
		} else {
			v.pods[o.Metadata.Name] = o.Metadata.UID
		}
	}
	return nil
}

func (v *view) contact(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		v.errs = append(v.errs, err.Error())
	}
}

// is waits until the view is what is wanted.
func (v *view) is(t *testing.T, want map[string]string) {
	t.Helper()
	waittest.Until(t, func() error {
		v.mu.Lock()
		defer v.mu.Unlock()
		if !maps.Equal(v.pods, want) {
			return fmt.Errorf("it knows %v, want %v; errors %q", v.pods, want, v.errs)
		}
		return nil
	})
}

func (v *view) saw(t *testing.T, what string) {
	t.Helper()
	waittest.Until(t, func() error {
		v.mu.Lock()
		defer v.mu.Unlock()
		for _, e := range v.errs {
			if strings.Contains(e, what) {
				return nil
			}
		}
		return fmt.Errorf("no error with %q: %q", what, v.errs)
	})
}

// following starts a follower of the server's pods with label a=b.
func following(t *testing.T, api http.Handler, change ...func(*Config, *List)) *view {
	server := httptest.NewServer(api)
	v := &view{}
	cfg := Config{URL: server.URL}
	l := List{Path: "/api/v1/namespaces/n/pods", Query: url.Values{"labelSelector": {"a=b"}}, Most: 1000, Watch: time.Minute,
		Least: time.Millisecond, Longest: 20 * time.Millisecond, Sink: v.sink, Contact: v.contact}
	for _, f := range change {
		f(&cfg, &l)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Follow(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		c.Close()
		server.CloseClientConnections()
		server.Close()
	})
	return v
}

var label = map[string]string{"a": "b"}

// The view ends equal to the server's pods, whatever happens on the way.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		api := kubetest.New()
		want := map[string]string{}
		store := func() {
			name, uid := fmt.Sprint("p", rnd.IntN(12)), fmt.Sprint(rnd.Uint32())
			labels := label
			if want[name] = uid; rnd.IntN(4) == 0 { // of others
				labels = map[string]string{"a": "c"}
				delete(want, name)
			}
			api.Store("pods", kubetest.Pod(name, uid, "10.0.0.1", labels, nil))
		}
		for range rnd.IntN(20) {
			store()
		}
		v := following(t, api)
		v.is(t, want)
		for range 60 {
			switch rnd.IntN(12) {
			case 0:
				api.Cut()
			case 1:
				api.Forget()
			case 2:
				api.Away(true)
				store()
				api.Away(false)
			case 3:
				v.is(t, want)
			case 4, 5, 6:
				name := fmt.Sprint("p", rnd.IntN(12))
				delete(want, name)
				api.Delete("pods", name)
			default:
				store()
			}
		}
		v.is(t, want)
	}
}

// A version that is too old costs a list; a cut watch goes on where it was.
func TestACutWatchGoesOnAndATooOldOneBeginsAnew(t *testing.T) {
	api := kubetest.New()
	api.Store("pods", kubetest.Pod("one", "1", "10.0.0.1", label, nil))
	v := following(t, api)
	v.is(t, map[string]string{"one": "1"})
	api.Cut()
	api.Store("pods", kubetest.Pod("two", "2", "10.0.0.2", label, nil))
	v.is(t, map[string]string{"one": "1", "two": "2"})
	if v.replaced != 1 {
		t.Errorf("%d lists after a cut watch, want 1", v.replaced)
	}
	api.Away(true)
	v.saw(t, "EOF")
	api.Delete("pods", "one")
	api.Forget()
	v.is(t, map[string]string{"one": "1", "two": "2"}) // nobody has told otherwise
	api.Away(false)
	v.is(t, map[string]string{"two": "2"})
	v.saw(t, "too old")
	if v.replaced != 2 {
		t.Errorf("the list was given %d times, want 2", v.replaced)
	}
}

// A server that was restored from a backup has an older history: a watch from a version that it
// has not reached would bring nothing, or what comes after that version alone.
func TestARestoredServerIsReadAnew(t *testing.T) {
	api := kubetest.New()
	api.Store("pods", kubetest.Pod("one", "1", "10.0.0.1", label, nil))
	saved := api.Save()
	v := following(t, api)
	v.is(t, map[string]string{"one": "1"})
	api.Store("pods", kubetest.Pod("two", "2", "10.0.0.2", label, nil))
	api.Delete("pods", "one")
	v.is(t, map[string]string{"two": "2"})
	api.Restore(saved)
	v.is(t, map[string]string{"one": "1"})
	v.saw(t, errWentBack.Error())
	api.Store("pods", kubetest.Pod("three", "3", "10.0.0.3", label, nil))
	v.is(t, map[string]string{"one": "1", "three": "3"})
}

// answers is a server without a network: what it says to a watch (1), to who asks where it is
// (2), to a further page (3), and to a list (0).
type answers struct {
	texts  [4]string // "" is 410
	asked  int
	enough func() // called where no end is in sight
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.asked++; a.asked > 5000 {
		a.enough()
		return nil, errors.New("too many")
	}
	q, i := r.URL.Query(), 0
	switch {
	case q.Get("watch") != "":
		i = 1
	case q.Get("limit") == "1":
		i = 2
	case q.Get("continue") != "":
		i = 3
	}
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(a.texts[i]))}
	if a.texts[i] == "" {
		resp.StatusCode = http.StatusGone
	}
	return resp, nil
}

// Whatever a server answers, and however fast, it is not asked all the time.
func TestNoServerIsAskedAllTheTime(t *testing.T) {
	const (
		list  = `{"kind":"PodList","metadata":{"resourceVersion":"5"},"items":[{}]}`
		older = `{"kind":"PodList","metadata":{"resourceVersion":"4"},"items":[{}]}`
		part  = `{"kind":"PodList","metadata":{"resourceVersion":"5","continue":"x"},"items":[{}]}`
		added = `{"type":"ADDED","object":{"metadata":{"resourceVersion":"6"}}}`
		back  = `{"type":"ADDED","object":{"metadata":{"resourceVersion":"4"}}}`
		gone  = `{"type":"ERROR","object":{"code":410}}`
		end   = "\n" // of a watch without an event
	)
	for name, c := range map[string]struct {
		texts [4]string
		most  int // requests in ten minutes: some 20 waits of 30 s, or 600 of a second
	}{
		"no version is known":         {most: 60},
		"each page is too late":       {[4]string{part, "", "", ""}, 120},
		"each watch is":               {[4]string{list, "", list, list}, 120},
		"each watch says so":          {[4]string{list, gone, list, list}, 120},
		"one event, then it":          {[4]string{list, added + gone, list, list}, 2500},
		"one event a watch":           {[4]string{list, added, list, list}, 2500},
		"nothing, and it is older":    {[4]string{list, end, older, list}, 180},
		"an older event":              {[4]string{list, back, list, list}, 120},
		"an event and an older event": {[4]string{list, added + back, list, list}, 2500},
		"where it is it does not say": {[4]string{list, end, "", list}, 180},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			a := &answers{texts: c.texts, enough: cancel}
			client, err := New(Config{URL: "http://api", Transport: a})
			if err != nil {
				t.Fatal(err)
			}
			begun, v := time.Now(), &view{}
			_ = client.Follow(ctx, List{Path: "/pods", Most: 10, Watch: time.Minute, Least: time.Second, Longest: 30 * time.Second,
				Sink: func(context.Context, Change) error { return nil }, Contact: v.contact})
			if a.asked > c.most || a.asked < 10 || time.Since(begun) < 10*time.Minute {
				t.Errorf("%s: asked %d times in %v, want 10 to %d", name, a.asked, time.Since(begun), c.most)
			}
		})
	}
}

// The token is read for each request, and a refusal says what to do.
func TestTheTokenIsReadAgain(t *testing.T) {
	api := kubetest.New()
	api.Token = "second"
	api.Store("pods", kubetest.Pod("one", "1", "10.0.0.1", label, nil))
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("first\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	v := following(t, api, func(c *Config, _ *List) { c.TokenFile = file })
	v.saw(t, "may this service account")
	if err := os.WriteFile(file, []byte("second\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	v.is(t, map[string]string{"one": "1"})
}

// More pods than may be followed are an error, and nothing is told of them.
func TestTooManyObjects(t *testing.T) {
	api := kubetest.New()
	for i := range 9 {
		api.Store("pods", kubetest.Pod(fmt.Sprint(i), "1", "10.0.0.1", label, nil))
	}
	v := following(t, api, func(_ *Config, l *List) { l.Most = 8 })
	v.saw(t, errTooMany.Error())
	api.Delete("pods", "8")
	waittest.Until(t, func() error {
		v.mu.Lock()
		defer v.mu.Unlock()
		if len(v.pods) != 8 {
			return fmt.Errorf("%d pods", len(v.pods))
		}
		return nil
	})
}

// What each answer means, in each state.
func TestMachine(t *testing.T) {
	page := func(version, next string, n int) []byte {
		return []byte(fmt.Sprintf(`{"kind":"PodList","metadata":{"resourceVersion":%q,"continue":%q},"items":[%s]}`, version, next, strings.TrimSuffix(strings.Repeat("{},", n), ",")))
	}
	m := machine{most: 5}
	if _, whole, err := m.onPage(page("7", "next", 3)); whole || err != nil || m.state != listing || m.page != "next" {
		t.Fatal(whole, err, m)
	}
	if err := m.onStatus(410, ""); !errors.Is(err, errTooOld) || m.page != "" || len(m.pages) != 0 {
		t.Fatal("a page that is too old does not begin the list anew", m)
	}
	if _, _, err := m.onPage(page("7", "next", 6)); !errors.Is(err, errTooMany) || m.page != "" {
		t.Fatal(err, m)
	}
	if _, _, err := m.onPage([]byte(`{"kind":"Pod","metadata":{"resourceVersion":"7"}}`)); !errors.Is(err, errNotAList) || m.state != listing {
		t.Error("an object is a list of nobody:", err)
	}
	if _, _, err := m.onPage([]byte(`{}`)); !errors.Is(err, errNotAList) {
		t.Fatal(err)
	}
	if c, whole, err := m.onPage(page("7", "", 5)); !whole || err != nil || len(c.Objects) != 5 || m.state != watching || m.version != "7" {
		t.Fatal(whole, err, m)
	}
	for _, step := range []struct {
		text    string
		told    bool
		failed  bool
		state   state
		version string
	}{
		{`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8"}}}`, false, false, watching, "8"},
		{`{"type":"ADDED","object":{"metadata":{"resourceVersion":"9"}}}`, true, false, watching, "9"},
		{`{"type":"ERROR","object":{"code":500,"message":"etcd"}}`, false, true, checking, "9"},
		{`{"type":"ERROR","object":{"code":410}}`, false, true, listing, ""},
	} {
		var e event
		if err := json.Unmarshal([]byte(step.text), &e); err != nil {
			t.Fatal(err)
		}
		_, told, err := m.onEvent(&e)
		if told != step.told || (err != nil) != step.failed || m.state != step.state || m.version != step.version {
			t.Errorf("%s: told %v, error %v, then %v from %q", step.text, told, err, m.state, m.version)
		}
	}
	m = machine{most: 5, state: watching, version: "3"}
	if _, _, err := m.onEvent(&event{Type: "NEW", Object: json.RawMessage(`{"metadata":{"resourceVersion":"8"}}`)}); err == nil || m.state != listing {
		t.Error("an event of a kind that is not known does not begin the list anew")
	}
	m = machine{most: 5, state: watching, version: "3"}
	if m.onBroken(); m.state != checking || m.version != "3" {
		t.Error("a watch that breaks does not ask whether it may go on")
	}
	for _, c := range []struct {
		has, is string
		from    state
	}{{"99", "100", watching}, {"100", "100", watching}, {"100", "99", listing}, {"100", "1000", watching}, {"x", "y", watching}} {
		m = machine{most: 5, state: checking, version: c.has}
		if err := m.onCheck(page(c.is, "more", 1)); m.state != c.from || (err != nil) != (c.from == listing) {
			t.Errorf("from %s, and the server is at %s: %v, %v", c.has, c.is, m.state, err)
		}
	}
	m = machine{most: 5, state: checking, version: "3"}
	if err := errors.Join(m.onCheck([]byte(`{}`)), m.onStatus(500, "")); err == nil || m.state != checking || m.version != "3" {
		t.Error("what is no answer says where the server is:", m)
	}
	m = machine{most: 5, state: watching, version: "10"}
	if _, told, err := m.onEvent(&event{Type: "ADDED", Object: json.RawMessage(`{"metadata":{"resourceVersion":"9"}}`)}); told || !errors.Is(err, errWentBack) || m.state != listing {
		t.Error("an event of an older history:", told, err, m)
	}
	m = machine{most: 5, state: watching, version: "10"}
	if m.onSilence(); m.state != checking {
		t.Error("a watch that brought nothing does not ask whether the server is there yet")
	}
}

// FuzzAnswers: no answer of a server makes it panic, or go on without a version.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[{}]}`), []byte(`{"type":"ADDED","object":{"metadata":{"resourceVersion":"9"}}}`))
	f.Add([]byte(`null`), []byte(`{"type":"ERROR","object":{"code":410}}`))
	f.Fuzz(func(t *testing.T, list, change []byte) {
		m := machine{most: 3}
		_, _, _ = m.onPage(list) // what it says is looked at below
		var e event
		if json.Unmarshal(change, &e) == nil && m.state == watching {
			_, _, _ = m.onEvent(&e)
		}
		if m.state == watching {
			m.onSilence()
			_ = m.onCheck(list)
		}
		if m.state != listing && m.version == "" || m.state == listing && m.version != "" {
			t.Errorf("%v from %q", m.state, m.version)
		}
	})
}

// A page without end is given up while it is small beside the memory that kvpods has.
func TestEndlessPage(t *testing.T) {
	v := following(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		space := bytes.Repeat([]byte(" "), 1<<20)
		for range 40 {
			if _, err := w.Write(space); err != nil {
				return
			}
		}
	}))
	v.saw(t, "is larger than")
}
